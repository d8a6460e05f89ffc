# docker build --tag distillery .                                   PyTorch with CUDA
# docker build --tag distillery --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# docker run --rm --gpus all --shm-size 8g --user "$(id -u):$(id -g)" \
#     --volume "$PWD:/work" distillery --cores all --configfile config/mine.yaml
FROM python:3.11-slim

ARG TORCH_INDEX=
# Any user may run it: `--user` has no home here, and PyTorch asks for a name. The hub's cache is
# in /cache: mount a folder there to keep it.
ENV PYTHONUNBUFFERED=1 HOME=/tmp USER=distillery XDG_CACHE_HOME=/cache

# torch.compile needs a compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git \
    && rm -rf /var/lib/apt/lists/* && mkdir --mode 1777 /cache

COPY constraints.txt /opt/distillery/
WORKDIR /opt/distillery
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY . /opt/distillery
RUN pip install --no-cache-dir --constraint constraints.txt .

# The folder of the run: configuration, prompts and results, with paths relative to it.
WORKDIR /work
ENTRYPOINT ["snakemake", "--snakefile", "/opt/distillery/Snakefile"]
CMD ["--help"]
