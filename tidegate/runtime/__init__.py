"""The model server that ships: a model or a Python class over the Open Inference Protocol V2.

``python -P -m tidegate.runtime.main`` serves one model. Nothing here needs more than the standard library: numpy is
used if it is installed, the library of a format only for its models. A function may thus bring its own interpreter with
nothing of ours in it but this package on ``PYTHONPATH``.
"""
