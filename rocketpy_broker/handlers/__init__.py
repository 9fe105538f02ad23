"""Request handlers, one module per family of request codes: values in, values out."""
