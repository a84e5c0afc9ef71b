"""`tune serve`: the bundled engine as an OpenAI-compatible server."""

from typing import Annotated

import typer

from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from tuner.cli import options as opt

_SERVER = "The server"


def serve(
    model: opt.Model = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.", rich_help_panel=_SERVER)
    ] = 8000,
    drain_timeout: Annotated[
        str,
        typer.Option(help="How long requests under way may go on after SIGTERM or Ctrl-C.", rich_help_panel=_SERVER),
    ] = "30s",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    kv_cache_dtype: opt.KVCacheDtype = "auto",
    max_model_len: opt.MaxModelLen = None,
    device_memory: opt.DeviceMemory = None,
    attention_backend: opt.AttentionBackend = "auto",
    enforce_eager: opt.EnforceEager = False,
    max_cudagraph_capture_size: opt.MaxCudagraphCaptureSize = MAX_CUDAGRAPH_CAPTURE_SIZE,
    tensor_parallel_size: opt.TensorParallelSize = 1,
    set_: opt.Set = None,
) -> None:
    """Serve the bundled engine over HTTP: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics."""
    from engine.build import find_device, load_executor
    from engine.config import EngineConfig, ModelConfig
    from engine.engine import Engine
    from engine.errors import UserError
    from engine.model.resolve import resolve_model
    from engine.server.run import EngineServer, listen
    from tuner.notices import chosen_settings
    from tuner.targets.bundled import default_model
    from tuner.units import parse_bytes, parse_duration_s

    place = find_device(device)
    if place.startswith("sim:"):
        raise UserError(
            f"--device {device} cannot serve: a simulated device runs on a virtual clock and produces no tokens; "
            "choose cpu or cuda"
        )
    drain_s = parse_duration_s("--drain-timeout", drain_timeout)
    settings = chosen_settings(set_ or [], _say)
    config = EngineConfig(
        ModelConfig(
            model or default_model(place),
            dtype,  # type: ignore[arg-type]  # checked by ModelConfig
            max_model_len,
            kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]  # likewise
        ),
        settings.cache(),
        settings.scheduler(),
        place,
        None if device_memory is None else parse_bytes("--device-memory", device_memory),
        tensor_parallel_size,
        attention_backend=attention_backend,
        enforce_eager=enforce_eager,
        max_cudagraph_capture_size=max_cudagraph_capture_size,
    )
    listener = listen(host, port)
    source = resolve_model(config.model.model, _say)
    if source.note:
        _say(source.note)
    engine = Engine(load_executor(config, source, say=_say), config.scheduler, config.cache)
    try:
        EngineServer(engine, source, drain_s, _say).run([listener])
    except KeyboardInterrupt:
        _say("stopped")  # uvicorn raises the signal again once all is closed


def _say(text: str) -> None:
    typer.echo(text, err=True)
