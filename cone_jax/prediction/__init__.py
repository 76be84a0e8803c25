"""Classes of pictures from a trained network, be it a run or an export.

    predictor = prediction.open_model("runs/birds")  # or "runs/birds/exports/onnx"
    for result in predictor(prediction.find_images(["photos/", "one.jpg"])):
        print(result.path, result.classes[0], result.probabilities[0])

Pictures go the way of the run's test pictures: its test transforms and its normalisation.
"""

from cone_jax.prediction.files import find_images, write_csv, write_jsonl
from cone_jax.prediction.predictor import Prediction, Predictor, open_model

__all__ = [
    "Prediction",
    "Predictor",
    "find_images",
    "open_model",
    "write_csv",
    "write_jsonl",
]
