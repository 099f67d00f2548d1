"""The OpenAI-compatible HTTP edge: Starlette on uvicorn, on the asyncio loop that grpc.aio runs on.

bodies > params > (completions, chat) > calls; it knows the gateway only through `octavo_gateway.requests`.
"""
