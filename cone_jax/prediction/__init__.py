"""Classifies pictures with a trained network, be it a run or an export.

    predictor = prediction.open_model("runs/birds")  # or "runs/birds/exports/onnx"
    for result in predictor(prediction.find_images(["photos/", "one.jpg"])):
        print(result.path, result.classes[0], result.probabilities[0])

Pictures are prepared like the run's test pictures, by its test transforms and normalisation.
"""

from cone_jax.prediction.detections import FoundObjects, ObjectFinder
from cone_jax.prediction.files import find_images, write_csv, write_detections, write_jsonl
from cone_jax.prediction.predictor import Prediction, Predictor, open_model, open_published

__all__ = [
    "FoundObjects",
    "ObjectFinder",
    "Prediction",
    "Predictor",
    "find_images",
    "open_model",
    "open_published",
    "write_csv",
    "write_detections",
    "write_jsonl",
]
