"""`ResNet50` alone, under the name that Keras has for it since its first versions."""

from .resnet import ResNet50, decode_predictions, preprocess_input

__all__ = ["ResNet50", "decode_predictions", "preprocess_input"]
