"""The predictors by name, without what they import."""

from __future__ import annotations

AUTO = "auto"  # op by op on a calibrated machine, class efficiencies elsewhere
ROOFLINE, EFFICIENCY, NEIGHBOURS, SVR, BOOSTING = "roofline", "efficiency", "neighbours", "svr", "boosting"
FITTED = (ROOFLINE, EFFICIENCY, NEIGHBOURS, SVR, BOOSTING)
WITH_EXTRA = (SVR, BOOSTING)  # need scikit-learn
OP_BY_OP_NAME = "op-by-op"
PREDICTORS = (AUTO, *FITTED, OP_BY_OP_NAME)
