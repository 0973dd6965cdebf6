"""Asks the model "letters" by tritonclient's asynchronous clients: protocol, address, and two files."""

import asyncio
import sys
from importlib import import_module

import numpy as np

protocol, address, given, wanted = sys.argv[1:]
triton = import_module(f"tritonclient.{protocol}")
aio = import_module(f"tritonclient.{protocol}.aio")


async def main() -> None:
    async with aio.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("letters")
        assert not await client.is_model_ready("half")
        assert "letters" in str(await client.get_model_metadata("letters"))
        x = np.load(given)
        tensor = triton.InferInput("x", x.shape, "INT64")
        tensor.set_data_from_numpy(x)
        answers = await asyncio.gather(*[client.infer("letters", [tensor]) for _ in range(8)])
        found = [answer.as_numpy("output_0") for answer in answers]
        for each in found[1:]:
            np.testing.assert_allclose(each, found[0], rtol=1e-5, atol=1e-7)
        np.save(wanted, found[0])


asyncio.run(main())
