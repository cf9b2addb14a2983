"""Keras 3 on one of its backends: one model file for all, in the data format that is native to the backend."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fathom.frameworks.framework import Framework, Step, Work
from fathom.frameworks.network import Array, keras_weights


class KerasFramework(Framework):
    backend: ClassVar[str]
    channels_last: ClassVar[bool] = True

    def environment(self, threads: int) -> dict[str, str]:
        return super().environment(threads) | {"KERAS_BACKEND": self.backend}

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        import keras

        if keras.backend.backend() != self.backend:
            raise RuntimeError(f"Keras runs on {keras.backend.backend()}, not on {self.backend}")
        keras.config.set_floatx("float32")  # a user's keras.json may say otherwise
        keras.config.set_image_data_format("channels_last" if self.channels_last else "channels_first")
        model = work.network.keras_model(keras)
        for layer in work.network.layers():
            arrays = keras_weights(layer, work.weights[layer.name], channels_last=self.channels_last)
            model.get_layer(layer.name).set_weights(arrays)
        model.compile(
            optimizer=keras.optimizers.SGD(work.network.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        settings = {"jit_compile": str(model.jit_compile), "image_data_format": keras.config.image_data_format()}
        inputs, labels = self._inputs(work.inputs), work.labels.astype(np.int32)
        if work.phase == "infer":
            return (lambda: np.asarray(model.predict_on_batch(inputs))), settings
        return (lambda: float(model.train_on_batch(inputs, labels))), settings

    def _inputs(self, inputs: Array) -> Array:
        if inputs.ndim == 4 and self.channels_last:
            return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
        return inputs
