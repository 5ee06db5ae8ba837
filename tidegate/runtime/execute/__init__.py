"""Execution of a model: batching, threads, ONNX files, Python classes, emulated accelerators."""
