"""The first stage: a picture in, the lines of text in it out, as the request of the recogniser.

An ASGI application, so that a client posts a picture as it is. Its answer is a request of the Open Inference
Protocol with binary tensors: the next stage gets it unchanged.
"""

import io
import json
from typing import Any

import numpy as np
from pictures import boxes_of, detector_input, model, strip_of
from PIL import Image, UnidentifiedImageError


class Detector:
    def __init__(self) -> None:
        self._model = model("ch_PP-OCRv4_det_infer.onnx")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        status, fields, answer = self.found(body)
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": answer})

    def found(self, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Returns (status, fields, body) of the answer."""
        try:
            picture = np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))
        except (UnidentifiedImageError, OSError, ValueError) as error:
            return _refused(415, f"no picture: {error}")
        (probability,) = self._model.run(None, {self._model.get_inputs()[0].name: detector_input(picture)})
        boxes = boxes_of(probability[0, 0], *picture.shape[:2])
        if not boxes:
            return _refused(422, "no text was found in this picture")
        strip, ends = strip_of(picture, boxes)
        tensors = {"strip": strip[None], "ends": np.array([ends], np.int32), "boxes": np.array([boxes], np.int32)}
        kinds = {"strip": "UINT8", "ends": "INT32", "boxes": "INT32"}
        pieces = [each.tobytes() for each in tensors.values()]
        described = [
            {
                "name": name,
                "shape": each.shape,
                "datatype": kinds[name],
                "parameters": {"binary_data_size": each.nbytes},
            }
            for name, each in tensors.items()
        ]
        text = json.dumps({"inputs": described}).encode()
        fields = [
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", str(len(text)).encode()),
        ]
        return 200, fields, text + b"".join(pieces)


def _refused(status: int, message: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    return status, [(b"content-type", b"application/json")], json.dumps({"error": message}).encode()


app = Detector()
