"""Layers: compositions of engine ops, with the names and numbers of Keras.

The file of a layer is imported when the layer is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine.common.names_elsewhere import LAYERS_MODULE
from ..engine.objects.on_demand import modules_by_name, on_demand
from ..engine.objects.registry import deserialize_keras_object as deserialize
from ..engine.objects.registry import register_builtins_to_come, serialize_keras_object

if TYPE_CHECKING:
    from .attention.cached import CachedMultiHeadAttention
    from .attention.cell import AttentionCell, AttentionRNN
    from .attention.dot_product import AdditiveAttention, Attention
    from .attention.grouped import GroupQueryAttention
    from .attention.multi_head import MultiHeadAttention
    from .attention.positions import (
        PositionEmbedding,
        ReversibleEmbedding,
        RotaryEmbedding,
        SinePositionEncoding,
        TokenAndPositionEmbedding,
    )
    from .attention.transformer import TransformerDecoder, TransformerDecoderCell, TransformerEncoder
    from .convolution.adaptive_pooling import (
        AdaptiveAveragePooling1D,
        AdaptiveAveragePooling2D,
        AdaptiveAveragePooling3D,
        AdaptiveMaxPooling1D,
        AdaptiveMaxPooling2D,
        AdaptiveMaxPooling3D,
    )
    from .convolution.blocks import InceptionBlock, ResidualBlock
    from .convolution.convolution import Conv1D, Conv2D, Conv3D, Convolution1D, Convolution2D, Convolution3D
    from .convolution.depthwise import (
        DepthwiseConv1D,
        DepthwiseConv2D,
        SeparableConv1D,
        SeparableConv2D,
        SeparableConvolution1D,
        SeparableConvolution2D,
    )
    from .convolution.padding import Cropping1D, Cropping2D, Cropping3D, ZeroPadding1D, ZeroPadding2D, ZeroPadding3D
    from .convolution.pooling import (
        AveragePooling1D,
        AveragePooling2D,
        AveragePooling3D,
        AvgPool1D,
        AvgPool2D,
        AvgPool3D,
        GlobalAveragePooling1D,
        GlobalAveragePooling2D,
        GlobalAveragePooling3D,
        GlobalAvgPool1D,
        GlobalAvgPool2D,
        GlobalAvgPool3D,
        GlobalMaxPool1D,
        GlobalMaxPool2D,
        GlobalMaxPool3D,
        GlobalMaxPooling1D,
        GlobalMaxPooling2D,
        GlobalMaxPooling3D,
        MaxPool1D,
        MaxPool2D,
        MaxPool3D,
        MaxPooling1D,
        MaxPooling2D,
        MaxPooling3D,
    )
    from .convolution.transpose import (
        Conv1DTranspose,
        Conv2DTranspose,
        Conv3DTranspose,
        Convolution1DTranspose,
        Convolution2DTranspose,
        Convolution3DTranspose,
    )
    from .convolution.upsampling import UpSampling1D, UpSampling2D, UpSampling3D
    from .core.activation import ELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
    from .core.basic import Identity, Lambda, Masking, Rescaling, Wrapper
    from .core.dense import Dense
    from .core.einsum_dense import EinsumDense
    from .core.embedding import Embedding
    from .core.input_layer import Input, InputLayer
    from .core.input_spec import InputSpec
    from .core.layer import Layer
    from .core.merging import (
        Add,
        Average,
        Concatenate,
        Dot,
        Maximum,
        Minimum,
        Multiply,
        Subtract,
        add,
        average,
        concatenate,
        dot,
        maximum,
        minimum,
        multiply,
        subtract,
    )
    from .core.shaping import Flatten, Permute, RepeatVector, Reshape
    from .mixture_of_experts import MixtureOfExperts
    from .normalization.batch_and_layer import BatchNormalization, LayerNormalization
    from .normalization.scale import GroupNormalization, RMSNormalization, UnitNormalization
    from .normalization.spectral import SpectralNormalization
    from .preprocessing.augmentation import (
        RandomBrightness,
        RandomContrast,
        RandomErasing,
        RandomRotation,
        RandomTranslation,
        RandomZoom,
    )
    from .preprocessing.augmentation_adaptive import ContrastLimitedAdaptiveHistogramEqualization
    from .preprocessing.augmentation_colors import (
        RandomColorDegeneration,
        RandomColorJitter,
        RandomGrayscale,
        RandomHue,
        RandomInvert,
        RandomPosterization,
        RandomSaturation,
        RandomSharpness,
    )
    from .preprocessing.augmentation_histograms import AutoContrast, Equalization, Solarization
    from .preprocessing.augmentation_mixing import CutMix, MixUp
    from .preprocessing.augmentation_policies import AugMix, Pipeline, RandAugment
    from .preprocessing.augmentation_warps import (
        RandomElasticTransform,
        RandomGaussianBlur,
        RandomPerspective,
        RandomShear,
    )
    from .preprocessing.boxes import MaxNumBoundingBoxes
    from .preprocessing.hash import HashedCrossing, Hashing
    from .preprocessing.images import CenterCrop, RandomCrop, RandomFlip, Resizing
    from .preprocessing.lookup import IntegerLookup, StringLookup
    from .preprocessing.numbers import CategoryEncoding, Discretization, Normalization
    from .preprocessing.spectrograms import MelSpectrogram, STFTSpectrogram
    from .preprocessing.text import TextVectorization
    from .recurrent.adaptive_computation_time import AdaptiveComputationTime
    from .recurrent.bidirectional import Bidirectional
    from .recurrent.cell_wrappers import CellWrapper, DeviceCell, DropoutCell, ResidualCell, ZoneoutCell
    from .recurrent.conv_lstm import ConvLSTM1D, ConvLSTM2D, ConvLSTM3D, ConvLSTMCell
    from .recurrent.gru import GRU, GRUCell
    from .recurrent.lstm import LSTM, LSTMCell
    from .recurrent.lstm_variants import LayerNormLSTMCell, PeepholeLSTMCell, ProjectedLSTMCell
    from .recurrent.rnn import RNN
    from .recurrent.simple_rnn import SimpleRNN, SimpleRNNCell
    from .recurrent.stacked_rnn_cells import StackedRNNCells
    from .recurrent.step_rows import live_rows
    from .recurrent.time_distributed import TimeDistributed
    from .recurrent.tree_lstm import TreeLSTM
    from .regularization.dropout import Dropout, GaussianNoise, SpatialDropout1D
    from .regularization.noise import ActivityRegularization, AlphaDropout, GaussianDropout
    from .regularization.spatial_dropout import SpatialDropout2D, SpatialDropout3D
    from .vocabulary.sampled_softmax import SampledSoftmax
    from .vocabulary.sharded_embedding import ShardedEmbedding

# By the file in this folder, the layers that it holds.
_LAYERS_IN: dict[str, str] = {
    "core.activation": "ELU Activation LeakyReLU PReLU ReLU Softmax",
    "recurrent.adaptive_computation_time": "AdaptiveComputationTime",
    "convolution.adaptive_pooling": (
        "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D "
        "AdaptiveMaxPooling2D AdaptiveMaxPooling3D"
    ),
    "attention.dot_product": "AdditiveAttention Attention",
    "attention.cached": "CachedMultiHeadAttention",
    "attention.cell": "AttentionCell AttentionRNN",
    "attention.grouped": "GroupQueryAttention",
    "attention.multi_head": "MultiHeadAttention",
    "preprocessing.augmentation_adaptive": "ContrastLimitedAdaptiveHistogramEqualization",
    "preprocessing.augmentation_colors": (
        "RandomColorDegeneration RandomColorJitter RandomGrayscale RandomHue RandomInvert RandomPosterization "
        "RandomSaturation RandomSharpness"
    ),
    "preprocessing.augmentation_histograms": "AutoContrast Equalization Solarization",
    "preprocessing.augmentation_mixing": "CutMix MixUp",
    "preprocessing.augmentation_policies": "AugMix Pipeline RandAugment",
    "preprocessing.augmentation_warps": "RandomElasticTransform RandomGaussianBlur RandomPerspective RandomShear",
    "core.basic": "Identity Lambda Masking Rescaling Wrapper",
    "recurrent.bidirectional": "Bidirectional",
    "recurrent.cell_wrappers": "DeviceCell DropoutCell ResidualCell ZoneoutCell",
    "recurrent.conv_lstm": "ConvLSTM1D ConvLSTM2D ConvLSTM3D ConvLSTMCell",
    "convolution.convolution": "Conv1D Conv2D Conv3D",
    "convolution.blocks": "InceptionBlock ResidualBlock",
    "convolution.depthwise": "DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D",
    "convolution.transpose": "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    "core.dense": "Dense",
    "regularization.dropout": "Dropout GaussianNoise SpatialDropout1D",
    "core.einsum_dense": "EinsumDense",
    "core.embedding": "Embedding",
    "recurrent.gru": "GRU GRUCell",
    "core.input_layer": "InputLayer",
    "core.layer": "Layer",
    "recurrent.lstm": "LSTM LSTMCell",
    "recurrent.lstm_variants": "LayerNormLSTMCell PeepholeLSTMCell ProjectedLSTMCell",
    "core.merging": "Add Average Concatenate Dot Maximum Minimum Multiply Subtract",
    "mixture_of_experts": "MixtureOfExperts",
    "regularization.noise": "ActivityRegularization AlphaDropout GaussianDropout",
    "normalization.batch_and_layer": "BatchNormalization LayerNormalization",
    "normalization.scale": "GroupNormalization RMSNormalization UnitNormalization",
    "normalization.spectral": "SpectralNormalization",
    "convolution.padding": "Cropping1D Cropping2D Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D",
    "convolution.pooling": (
        "AveragePooling1D AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D "
        "GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D MaxPooling1D MaxPooling2D "
        "MaxPooling3D"
    ),
    "attention.positions": (
        "PositionEmbedding ReversibleEmbedding RotaryEmbedding SinePositionEncoding TokenAndPositionEmbedding"
    ),
    "preprocessing.augmentation": (
        "RandomBrightness RandomContrast RandomErasing RandomRotation RandomTranslation RandomZoom"
    ),
    "preprocessing.boxes": "MaxNumBoundingBoxes",
    "preprocessing.hash": "HashedCrossing Hashing",
    "preprocessing.images": "CenterCrop RandomCrop RandomFlip Resizing",
    "preprocessing.lookup": "IntegerLookup StringLookup",
    "preprocessing.numbers": "CategoryEncoding Discretization Normalization",
    "preprocessing.text": "TextVectorization",
    "recurrent.rnn": "RNN",
    "vocabulary.sampled_softmax": "SampledSoftmax",
    "core.shaping": "Flatten Permute RepeatVector Reshape",
    "vocabulary.sharded_embedding": "ShardedEmbedding",
    "recurrent.simple_rnn": "SimpleRNN SimpleRNNCell",
    "regularization.spatial_dropout": "SpatialDropout2D SpatialDropout3D",
    "preprocessing.spectrograms": "MelSpectrogram STFTSpectrogram",
    "recurrent.stacked_rnn_cells": "StackedRNNCells",
    "recurrent.time_distributed": "TimeDistributed",
    "attention.transformer": "TransformerDecoder TransformerDecoderCell TransformerEncoder",
    "recurrent.tree_lstm": "TreeLSTM",
    "convolution.upsampling": "UpSampling1D UpSampling2D UpSampling3D",
}
# The same of what no file of a model names: second names, functions, and what is no layer.
_OTHERS_IN: dict[str, str] = {
    "recurrent.cell_wrappers": "CellWrapper",
    "convolution.convolution": "Convolution1D Convolution2D Convolution3D",
    "convolution.depthwise": "SeparableConvolution1D SeparableConvolution2D",
    "convolution.transpose": "Convolution1DTranspose Convolution2DTranspose Convolution3DTranspose",
    "core.input_layer": "Input",
    "core.input_spec": "InputSpec",
    "core.merging": "add average concatenate dot maximum minimum multiply subtract",
    "convolution.pooling": (
        "AvgPool1D AvgPool2D AvgPool3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D "
        "GlobalMaxPool2D GlobalMaxPool3D MaxPool1D MaxPool2D MaxPool3D"
    ),
    "recurrent.step_rows": "live_rows",
}


_LAYERS = modules_by_name(__name__, _LAYERS_IN)
_NAMES = _LAYERS | modules_by_name(__name__, _OTHERS_IN)
register_builtins_to_come("keras.layers", _LAYERS)

# Layers of Keras that run what another framework made, and what to use in place of them.
_INSTEAD = {
    "TFSMLayer": "It runs a SavedModel by TensorFlow. Convert that to ONNX (tf2onnx) and read it with ab.onnx.load.",
    "JaxLayer": "It runs functions of JAX. Write them with anabranch.ops in a Layer of your own.",
    "FlaxLayer": "It runs modules of Flax. Write them with anabranch.layers, or in a Layer of your own.",
    "TorchModuleWrapper": "It runs modules of PyTorch. Export them by torch.onnx.export; read them with ab.onnx.load.",
}
if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, __dir__ = on_demand(globals(), _NAMES, _INSTEAD, LAYERS_MODULE)


def serialize(layer: object) -> Any:
    """Return the config of a layer, from which `deserialize` makes one like it."""
    return serialize_keras_object(layer)


__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveComputationTime",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "AttentionCell",
    "AttentionRNN",
    "AugMix",
    "AutoContrast",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNormalization",
    "Bidirectional",
    "CachedMultiHeadAttention",
    "CategoryEncoding",
    "CellWrapper",
    "CenterCrop",
    "Concatenate",
    "ContrastLimitedAdaptiveHistogramEqualization",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "ConvLSTMCell",
    "Convolution1D",
    "Convolution1DTranspose",
    "Convolution2D",
    "Convolution2DTranspose",
    "Convolution3D",
    "Convolution3DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "CutMix",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "DeviceCell",
    "Discretization",
    "Dot",
    "Dropout",
    "DropoutCell",
    "EinsumDense",
    "Embedding",
    "Equalization",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNormalization",
    "GroupQueryAttention",
    "HashedCrossing",
    "Hashing",
    "Identity",
    "InceptionBlock",
    "Input",
    "InputLayer",
    "InputSpec",
    "IntegerLookup",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormLSTMCell",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxNumBoundingBoxes",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "MelSpectrogram",
    "Minimum",
    "MixUp",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "Multiply",
    "Normalization",
    "PReLU",
    "PeepholeLSTMCell",
    "Permute",
    "Pipeline",
    "PositionEmbedding",
    "ProjectedLSTMCell",
    "RMSNormalization",
    "RandAugment",
    "RandomBrightness",
    "RandomColorDegeneration",
    "RandomColorJitter",
    "RandomContrast",
    "RandomCrop",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomFlip",
    "RandomGaussianBlur",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterization",
    "RandomRotation",
    "RandomSaturation",
    "RandomSharpness",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "ResidualBlock",
    "ResidualCell",
    "Resizing",
    "ReversibleEmbedding",
    "RotaryEmbedding",
    "STFTSpectrogram",
    "SampledSoftmax",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "ShardedEmbedding",
    "SimpleRNN",
    "SimpleRNNCell",
    "SinePositionEncoding",
    "Softmax",
    "Solarization",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "StackedRNNCells",
    "StringLookup",
    "Subtract",
    "TextVectorization",
    "TimeDistributed",
    "TokenAndPositionEmbedding",
    "TransformerDecoder",
    "TransformerDecoderCell",
    "TransformerEncoder",
    "TreeLSTM",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "Wrapper",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "ZoneoutCell",
    "add",
    "average",
    "concatenate",
    "deserialize",
    "dot",
    "live_rows",
    "maximum",
    "minimum",
    "multiply",
    "serialize",
    "subtract",
]
