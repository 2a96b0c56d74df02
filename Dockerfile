# The image of lm_mia, for CPUs by default:
#
#     docker build -t lm_mia .
#     docker build -t lm_mia:cuda --build-arg EXTRA=cuda .    # NVIDIA GPUs; "tpu" for TPUs
#     docker run --rm -v "$PWD/runs:/lm_mia/runs" lm_mia run --config=quickstart --workdir=runs/quickstart
#
# The driver of the accelerator is not included. The working directory is the checkout, as `lm-mia launch jobset` expects.
FROM python:3.11-slim
RUN pip install --no-cache-dir uv
WORKDIR /lm_mia
ARG EXTRA=""
ENV PATH=/lm_mia/.venv/bin:$PATH
COPY pyproject.toml uv.lock README.md LICENSE ./
# Dependencies first, so that a change of the code does not install them again.
RUN uv sync --frozen --no-dev --no-install-project ${EXTRA:+--extra $EXTRA}
COPY configs configs
COPY lm_mia lm_mia
COPY launch launch
COPY analysis analysis
RUN uv sync --frozen --no-dev ${EXTRA:+--extra $EXTRA}
ENTRYPOINT ["lm-mia"]
