# The operator, and what applies CRDs before an upgrade.
# Built for the platform asked for, see images/README.md. BASE has no default: give a Python 3.11 by its digest.
ARG BASE
ARG TARGETPLATFORM

FROM --platform=$TARGETPLATFORM ${BASE} AS build
WORKDIR /src
COPY images/locks/build.txt images/locks/operator.txt /locks/
RUN python -m venv /opt/blurfleet \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r /locks/build.txt \
 && /opt/blurfleet/bin/pip install --no-cache-dir --require-hashes -r /locks/operator.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY core core
COPY forge forge
COPY services services
COPY operator operator
COPY cli cli
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/blurfleet/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM --platform=$TARGETPLATFORM ${BASE}
COPY --from=build /opt/blurfleet /opt/blurfleet
ENV PATH=/opt/blurfleet/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
CMD ["blurfleet", "operator"]
