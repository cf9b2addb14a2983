"""What everything stands on: errors, specs, records, their store, plug-ins and events. No torch."""
