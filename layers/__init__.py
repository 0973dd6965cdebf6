"""Layers: compositions of engine ops, with the names and numbers of Keras.

The file of a layer is imported when the layer is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.objects.on_demand import modules_by_name, on_demand
from ..engine.objects.registry import deserialize_keras_object as deserialize
from ..engine.objects.registry import register_builtins_to_come
from ..engine.objects.registry import serialize_keras_object as serialize

if TYPE_CHECKING:
    from .activation import ELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
    from .adaptive_computation_time import AdaptiveComputationTime
    from .adaptive_pooling import (
        AdaptiveAveragePooling1D,
        AdaptiveAveragePooling2D,
        AdaptiveAveragePooling3D,
        AdaptiveMaxPooling1D,
        AdaptiveMaxPooling2D,
        AdaptiveMaxPooling3D,
    )
    from .attention import AdditiveAttention, Attention
    from .attention_cached import CachedMultiHeadAttention
    from .attention_cell import AttentionCell, AttentionRNN
    from .attention_grouped import GroupQueryAttention
    from .attention_multi_head import MultiHeadAttention
    from .augmentation_adaptive import ContrastLimitedAdaptiveHistogramEqualization
    from .augmentation_colors import (
        RandomColorDegeneration,
        RandomColorJitter,
        RandomGrayscale,
        RandomHue,
        RandomInvert,
        RandomPosterization,
        RandomSaturation,
        RandomSharpness,
    )
    from .augmentation_histograms import AutoContrast, Equalization, Solarization
    from .augmentation_mixing import CutMix, MixUp
    from .augmentation_policies import AugMix, Pipeline, RandAugment
    from .augmentation_warps import RandomElasticTransform, RandomGaussianBlur, RandomPerspective, RandomShear
    from .basic import Identity, Lambda, Masking, Rescaling
    from .bidirectional import Bidirectional
    from .cell_wrappers import CellWrapper, DeviceCell, DropoutCell, ResidualCell, ZoneoutCell
    from .conv_lstm import ConvLSTM1D, ConvLSTM2D, ConvLSTM3D, ConvLSTMCell
    from .convolution import Conv1D, Conv2D, Conv3D, Convolution1D, Convolution2D, Convolution3D
    from .convolution_blocks import InceptionBlock, ResidualBlock
    from .convolution_depthwise import (
        DepthwiseConv1D,
        DepthwiseConv2D,
        SeparableConv1D,
        SeparableConv2D,
        SeparableConvolution1D,
        SeparableConvolution2D,
    )
    from .convolution_transpose import (
        Conv1DTranspose,
        Conv2DTranspose,
        Conv3DTranspose,
        Convolution1DTranspose,
        Convolution2DTranspose,
        Convolution3DTranspose,
    )
    from .dense import Dense
    from .dropout import Dropout, GaussianNoise, SpatialDropout1D
    from .einsum_dense import EinsumDense
    from .embedding import Embedding
    from .gru import GRU, GRUCell
    from .input_layer import Input, InputLayer
    from .input_spec import InputSpec
    from .layer import Layer
    from .lstm import LSTM, LSTMCell
    from .lstm_variants import LayerNormLSTMCell, PeepholeLSTMCell, ProjectedLSTMCell
    from .merging import (
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
    from .mixture_of_experts import MixtureOfExperts
    from .noise import ActivityRegularization, AlphaDropout, GaussianDropout
    from .normalization import BatchNormalization, LayerNormalization
    from .normalization_scale import GroupNormalization, RMSNormalization, UnitNormalization
    from .normalization_spectral import SpectralNormalization
    from .padding import Cropping1D, Cropping2D, Cropping3D, ZeroPadding1D, ZeroPadding2D, ZeroPadding3D
    from .pooling import (
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
    from .positions import (
        PositionEmbedding,
        ReversibleEmbedding,
        RotaryEmbedding,
        SinePositionEncoding,
        TokenAndPositionEmbedding,
    )
    from .preprocessing_augmentation import (
        RandomBrightness,
        RandomContrast,
        RandomRotation,
        RandomTranslation,
        RandomZoom,
    )
    from .preprocessing_hash import HashedCrossing, Hashing
    from .preprocessing_images import CenterCrop, RandomCrop, RandomErasing, RandomFlip, Resizing
    from .preprocessing_lookup import IntegerLookup, StringLookup
    from .preprocessing_numbers import CategoryEncoding, Discretization, Normalization
    from .preprocessing_text import TextVectorization
    from .rnn import RNN
    from .sampled_softmax import SampledSoftmax
    from .shaping import Flatten, Permute, RepeatVector, Reshape
    from .sharded_embedding import ShardedEmbedding
    from .simple_rnn import SimpleRNN, SimpleRNNCell
    from .spatial_dropout import SpatialDropout2D, SpatialDropout3D
    from .spectrograms import MelSpectrogram, STFTSpectrogram
    from .stacked_rnn_cells import StackedRNNCells
    from .step_rows import live_rows
    from .time_distributed import TimeDistributed
    from .transformer import TransformerDecoder, TransformerDecoderCell, TransformerEncoder
    from .tree_lstm import TreeLSTM
    from .upsampling import UpSampling1D, UpSampling2D, UpSampling3D
    from .wrapper import Wrapper

# By the file in this folder, the layers that it holds.
_LAYERS_IN: dict[str, str] = {
    "activation": "ELU Activation LeakyReLU PReLU ReLU Softmax",
    "adaptive_computation_time": "AdaptiveComputationTime",
    "adaptive_pooling": (
        "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D "
        "AdaptiveMaxPooling2D AdaptiveMaxPooling3D"
    ),
    "attention": "AdditiveAttention Attention",
    "attention_cached": "CachedMultiHeadAttention",
    "attention_cell": "AttentionCell AttentionRNN",
    "attention_grouped": "GroupQueryAttention",
    "attention_multi_head": "MultiHeadAttention",
    "augmentation_adaptive": "ContrastLimitedAdaptiveHistogramEqualization",
    "augmentation_colors": (
        "RandomColorDegeneration RandomColorJitter RandomGrayscale RandomHue RandomInvert RandomPosterization "
        "RandomSaturation RandomSharpness"
    ),
    "augmentation_histograms": "AutoContrast Equalization Solarization",
    "augmentation_mixing": "CutMix MixUp",
    "augmentation_policies": "AugMix Pipeline RandAugment",
    "augmentation_warps": "RandomElasticTransform RandomGaussianBlur RandomPerspective RandomShear",
    "basic": "Identity Lambda Masking Rescaling",
    "bidirectional": "Bidirectional",
    "cell_wrappers": "DeviceCell DropoutCell ResidualCell ZoneoutCell",
    "conv_lstm": "ConvLSTM1D ConvLSTM2D ConvLSTM3D ConvLSTMCell",
    "convolution": "Conv1D Conv2D Conv3D",
    "convolution_blocks": "InceptionBlock ResidualBlock",
    "convolution_depthwise": "DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D",
    "convolution_transpose": "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    "dense": "Dense",
    "dropout": "Dropout GaussianNoise SpatialDropout1D",
    "einsum_dense": "EinsumDense",
    "embedding": "Embedding",
    "gru": "GRU GRUCell",
    "input_layer": "InputLayer",
    "layer": "Layer",
    "lstm": "LSTM LSTMCell",
    "lstm_variants": "LayerNormLSTMCell PeepholeLSTMCell ProjectedLSTMCell",
    "merging": "Add Average Concatenate Dot Maximum Minimum Multiply Subtract",
    "mixture_of_experts": "MixtureOfExperts",
    "noise": "ActivityRegularization AlphaDropout GaussianDropout",
    "normalization": "BatchNormalization LayerNormalization",
    "normalization_scale": "GroupNormalization RMSNormalization UnitNormalization",
    "normalization_spectral": "SpectralNormalization",
    "padding": "Cropping1D Cropping2D Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D",
    "pooling": (
        "AveragePooling1D AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D "
        "GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D MaxPooling1D MaxPooling2D "
        "MaxPooling3D"
    ),
    "positions": "PositionEmbedding ReversibleEmbedding RotaryEmbedding SinePositionEncoding TokenAndPositionEmbedding",
    "preprocessing_augmentation": "RandomBrightness RandomContrast RandomRotation RandomTranslation RandomZoom",
    "preprocessing_hash": "HashedCrossing Hashing",
    "preprocessing_images": "CenterCrop RandomCrop RandomErasing RandomFlip Resizing",
    "preprocessing_lookup": "IntegerLookup StringLookup",
    "preprocessing_numbers": "CategoryEncoding Discretization Normalization",
    "preprocessing_text": "TextVectorization",
    "rnn": "RNN",
    "sampled_softmax": "SampledSoftmax",
    "shaping": "Flatten Permute RepeatVector Reshape",
    "sharded_embedding": "ShardedEmbedding",
    "simple_rnn": "SimpleRNN SimpleRNNCell",
    "spatial_dropout": "SpatialDropout2D SpatialDropout3D",
    "spectrograms": "MelSpectrogram STFTSpectrogram",
    "stacked_rnn_cells": "StackedRNNCells",
    "time_distributed": "TimeDistributed",
    "transformer": "TransformerDecoder TransformerDecoderCell TransformerEncoder",
    "tree_lstm": "TreeLSTM",
    "upsampling": "UpSampling1D UpSampling2D UpSampling3D",
    "wrapper": "Wrapper",
}
# The same of what no file of a model names: second names, functions, and what is no layer.
_OTHERS_IN: dict[str, str] = {
    "cell_wrappers": "CellWrapper",
    "convolution": "Convolution1D Convolution2D Convolution3D",
    "convolution_depthwise": "SeparableConvolution1D SeparableConvolution2D",
    "convolution_transpose": "Convolution1DTranspose Convolution2DTranspose Convolution3DTranspose",
    "input_layer": "Input",
    "input_spec": "InputSpec",
    "merging": "add average concatenate dot maximum minimum multiply subtract",
    "pooling": (
        "AvgPool1D AvgPool2D AvgPool3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D "
        "GlobalMaxPool2D GlobalMaxPool3D MaxPool1D MaxPool2D MaxPool3D"
    ),
    "step_rows": "live_rows",
}


_LAYERS = modules_by_name(__name__, _LAYERS_IN)
_NAMES = _LAYERS | modules_by_name(__name__, _OTHERS_IN)
register_builtins_to_come("keras.layers", _LAYERS)
if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, __dir__ = on_demand(globals(), _NAMES)

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
