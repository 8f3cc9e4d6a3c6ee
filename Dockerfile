# hybridbench on the CPU build of torch:
#   docker build -t hybridbench .
#   docker run --rm -v "$PWD/results:/work/results" hybridbench soak --duration 5m
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# For another device, give its index: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt --index-url "$TORCH_INDEX" torch
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/wheels/*.whl \
    && rm -r /tmp/wheels /tmp/constraints.txt \
    && useradd --create-home bench \
    && mkdir -p /work/results && chown -R bench /work
USER bench
WORKDIR /work
ENTRYPOINT ["hybridbench"]
CMD ["--help"]
