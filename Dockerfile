# syntax=docker/dockerfile:1
# One image for CPUs (VARIANT=cpu) or for NVIDIA GPUs (VARIANT=cuda). docs/deployment.md says how to build and run it.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
ARG VARIANT=cpu
# A package index with the torch build you want; by default pip's own. Its build for amd64 is the CUDA build, which runs on
# CPUs too, but takes some 4 GB more.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/racer-csd
ENV PATH=/opt/racer-csd/bin:$PATH
WORKDIR /src

# Dependencies change seldom, so they get their own layer. The lock file serves as constraints, because it also pins test tools.
COPY pyproject.toml requirements.lock ./
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-deps --index-url "$TORCH_INDEX" --constraint requirements.lock torch; \
    fi \
 && python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
      > dependencies.txt \
 && pip install --constraint requirements.lock --requirement dependencies.txt \
 && case "$VARIANT" in \
      cpu) ;; \
      cuda) python -c 'import sys, torch; sys.exit(None if torch.version.cuda else "VARIANT=cuda, but torch has no CUDA here")' ;; \
      *) echo "VARIANT is cpu or cuda" >&2; exit 1 ;; \
    esac

COPY LICENSE README.md ./
COPY app app
COPY bench bench
COPY csd csd
COPY racer racer
RUN pip install --no-deps .

# Kernels for any processor of this architecture: as fast as kernels for one model, and never compiled again on another.
ENV NUMBA_CPU_NAME=generic
COPY docker/compile_kernels.py docker/
RUN NUMBA_CACHE_DIR=/opt/racer-csd/kernels python docker/compile_kernels.py

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="racer-csd" \
      org.opencontainers.image.description="OpenAI-compatible inference with speculative decoding" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 racer \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/racer-csd --shell /usr/sbin/nologin racer \
 && install --directory --owner=10001 --group=10001 /var/cache/racer-csd
COPY --from=build /opt/racer-csd /opt/racer-csd
COPY --chmod=0755 docker/entrypoint.sh docker/healthcheck.py /opt/racer-csd/bin/

ENV PATH=/opt/racer-csd/bin:$PATH \
    HOME=/var/cache/racer-csd \
    HF_HOME=/var/cache/racer-csd/huggingface \
    RACER_CACHE_DIR=/var/cache/racer-csd \
    RACER_HOST=0.0.0.0 \
    RACER_PORT=8000 \
    NUMBA_CPU_NAME=generic \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/racer-csd
# Models, converted weights, measured costs and the correction memory; everything else is read-only.
VOLUME ["/var/cache/racer-csd"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# The first start fetches and converts the model: failures do not count until start-period is over.
HEALTHCHECK --interval=5s --timeout=5s --start-period=10m --retries=3 \
  CMD ["python", "/opt/racer-csd/bin/healthcheck.py"]
ENTRYPOINT ["/opt/racer-csd/bin/entrypoint.sh"]
CMD ["serve"]
