"""The seven kinds of `blurfleet.dev/v1alpha1` as frozen pydantic models, and the build record. No I/O here."""
