"""Request handlers, one module a family: values in, values out."""
