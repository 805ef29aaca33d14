# Images of pydra: Python, pydra, and with BACKENDS these folders of plugins/: backends, and what these need there; no
# shell, no package manager. `make image` builds all; docs/images.md is about them, and about building one with a backend of your own.
# Two builds of one commit are the same: what is installed is pinned by hash, times are those of SOURCE_DATE_EPOCH.

# python:3.13.15-slim-trixie, for all platforms. Another base must be a Debian with Python in a prefix of its own.
ARG BASE=docker.io/library/python@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

FROM ${BASE} AS build
WORKDIR /src
# The order of sets would else get into the bytecode.
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
COPY . .
ARG SOURCE_DATE_EPOCH=315532800
# A pip.conf for those who need one to reach an index; it stays outside of the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf python hack/image/install.py core /core

FROM build AS backends
# Arguments of one stage are not those of the next.
ARG SOURCE_DATE_EPOCH=315532800
ARG BACKENDS=""
RUN --mount=type=secret,id=pip,target=/etc/pip.conf python hack/image/install.py backends /backends ${BACKENDS}

FROM scratch AS core
COPY --from=build /core/ /
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin LANG=C.UTF-8
# The agent needs user 0, which the kubelet's directories belong to; nothing else does.
USER 65532:65532
CMD ["pydra-agent", "--help"]
ARG TITLE=pydra
ARG VERSION=""
LABEL org.opencontainers.image.title=${TITLE} org.opencontainers.image.version=${VERSION} \
    org.opencontainers.image.description="Kubernetes drivers for accelerators, in Python"

FROM core
COPY --from=backends /backends/ /
ARG TITLE=pydra
ARG VERSION=""
LABEL org.opencontainers.image.title=${TITLE} org.opencontainers.image.version=${VERSION}
