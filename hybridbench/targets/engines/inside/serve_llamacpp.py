"""llama.cpp's own HTTP server in a Python process, with options of ``llama-server``."""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="serve", description=__doc__)
    parser.add_argument("--model", "-m", required=True, help="A GGUF file.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--ctx-size", "-c", type=int, default=4096, help="Of all slots together.")
    parser.add_argument("--parallel", "-np", type=int, default=4, help="Number of slots.")
    parser.add_argument("--threads", "-t", type=int, default=1)
    parser.add_argument("--threads-http", type=int, default=4)
    parser.add_argument(
        "--cache-ram", "-cram", type=int, default=8192, metavar="MIB", help="Prompt cache."
    )
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    try:
        params.hostnames = [options.host]
    except AttributeError:
        # The field's name in older releases.
        params.hostname = options.host
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_threads_http = options.threads_http
    params.cache_ram_mib = options.cache_ram
    params.endpoint_metrics = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    # The server's threads serve; a signal ends the process as it would end llama-server.
    signal.pause()


if __name__ == "__main__":
    main()
