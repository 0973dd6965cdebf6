"""Layers: compositions of engine ops, with the names and numbers of Keras."""

from ..engine.objects.registry import deserialize_keras_object as deserialize
from ..engine.objects.registry import register_builtins
from ..engine.objects.registry import serialize_keras_object as serialize
from .activation import ELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
from .basic import Identity, Lambda, Masking, Rescaling
from .bidirectional import Bidirectional
from .dense import Dense
from .dropout import Dropout, GaussianNoise, SpatialDropout1D
from .embedding import Embedding
from .gru import GRU, GRUCell
from .input_layer import Input, InputLayer
from .input_spec import InputSpec
from .layer import Layer
from .lstm import LSTM, LSTMCell
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
from .normalization import BatchNormalization, LayerNormalization
from .pooling import GlobalAveragePooling1D, GlobalMaxPooling1D
from .rnn import RNN
from .shaping import Flatten, Permute, RepeatVector, Reshape
from .simple_rnn import SimpleRNN, SimpleRNNCell
from .stacked_rnn_cells import StackedRNNCells
from .time_distributed import TimeDistributed

_LAYERS = [
    Activation,
    Add,
    Average,
    BatchNormalization,
    Bidirectional,
    Concatenate,
    Dense,
    Dot,
    Dropout,
    ELU,
    Embedding,
    Flatten,
    GRU,
    GRUCell,
    GaussianNoise,
    GlobalAveragePooling1D,
    GlobalMaxPooling1D,
    Identity,
    InputLayer,
    LSTM,
    LSTMCell,
    Lambda,
    Layer,
    LayerNormalization,
    LeakyReLU,
    Masking,
    Maximum,
    Minimum,
    Multiply,
    PReLU,
    Permute,
    RNN,
    ReLU,
    RepeatVector,
    Rescaling,
    Reshape,
    SimpleRNN,
    SimpleRNNCell,
    Softmax,
    SpatialDropout1D,
    StackedRNNCells,
    Subtract,
    TimeDistributed,
]
register_builtins("keras.layers", {layer.__name__: layer for layer in _LAYERS})

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Add",
    "Average",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Dense",
    "Dot",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalMaxPooling1D",
    "Identity",
    "Input",
    "InputLayer",
    "InputSpec",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "Maximum",
    "Minimum",
    "Multiply",
    "PReLU",
    "Permute",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "StackedRNNCells",
    "Subtract",
    "TimeDistributed",
    "add",
    "average",
    "concatenate",
    "deserialize",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "serialize",
    "subtract",
]
