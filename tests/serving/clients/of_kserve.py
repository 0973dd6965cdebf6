"""Asks the models "letters" and "words" by KServe's clients: the protocol, its address, and two files."""

import asyncio
import sys
from importlib import import_module

import numpy as np

protocol, address, given, wanted = sys.argv[1:]
kserve = import_module("kserve")
x = np.load(given)
TEXTS = np.array([b"a", "Öl".encode(), b""], dtype=object)


def asked(model, name, datatype, array, **options):
    tensor = kserve.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **options)
    return kserve.InferRequest(model, [tensor], request_id="7")


def check_texts(answer):
    for output in answer.outputs:
        found = [each if isinstance(each, bytes) else each.encode() for each in output.as_numpy().tolist()]
        assert found == TEXTS.tolist(), found


async def by_version_2():
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    assert await client.is_server_live(address)
    assert await client.is_server_ready(address)
    assert await client.is_model_ready(address, "letters")
    assert not await client.is_model_ready(address, "half")
    for binary in (True, False):
        texts = asked("words", "words", "BYTES", TEXTS, binary_data=binary)
        check_texts(await client.infer(address, texts, model_name="words"))
    found = []
    for binary in (True, False):
        request = asked("letters", "x", "INT64", x, binary_data=binary)
        answer = await client.infer(address, request, model_name="letters")
        assert answer.id == "7"
        found.append(answer.outputs[0].as_numpy())
    np.testing.assert_array_equal(*found)
    said = ""
    try:
        await client.infer(address, asked("letters", "y", "INT64", x), model_name="letters")
    except import_module("httpx").HTTPStatusError as error:
        said = str(error)
    assert "missing: 'x'" in said, said
    await client.close()
    return found[0]


async def by_version_1():
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1"))
    answer = await client.infer(address, {"instances": x.tolist()}, model_name="letters")
    await client.close()
    return np.array(answer["predictions"], "float32")


async def by_grpc():
    async with kserve.InferenceGRPCClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("letters")
        assert not await client.is_model_ready("half")
        check_texts(await client.infer(asked("words", "words", "BYTES", TEXTS)))
        answer = await client.infer(asked("letters", "x", "INT64", x))
        assert answer.id == "7"
        typed = kserve.InferInput("x", list(x.shape), "INT64", data=x.reshape(-1).tolist())
        again = await client.infer(kserve.InferRequest("letters", [typed]))
        np.testing.assert_array_equal(again.outputs[0].as_numpy(), answer.outputs[0].as_numpy())
        return answer.outputs[0].as_numpy()


ways = {"v2": by_version_2, "v1": by_version_1, "grpc": by_grpc}
np.save(wanted, asyncio.run(ways[protocol]()))
