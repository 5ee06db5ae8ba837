"""Request bodies of load clients."""


def v2_body(inferences: int) -> bytes:
    """A V2 inference request whose first dimension says how many inferences it carries."""
    data = ",".join(["0.5"] * inferences)
    return f'{{"inputs":[{{"name":"x","shape":[{inferences},1],"datatype":"FP32","data":[{data}]}}]}}'.encode()
