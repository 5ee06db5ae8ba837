"""The predictor's process: it learns from served work and predicts, beside the control process and at low priority."""
