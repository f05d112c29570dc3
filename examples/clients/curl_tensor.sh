#!/bin/sh
# A ready tensor through KServe v2, binary both ways: curl_tensor.sh 127.0.0.1:8090 HASH tensor.npy
# leaves the matte as 320x320 little-endian float32. HASH is what `blurfleet contract hash` prints.
set -eu
door=$1 contract=$2 tensor=$3
image=1228800 matte=409600 # bytes of [1,3,320,320] and [1,1,320,320]
head='{"inputs":[{"name":"image","datatype":"FP32","shape":[1,3,320,320],"parameters":{"binary_data_size":1228800}}],'
head=$head'"outputs":[{"name":"matte","parameters":{"binary_data":true}}]}'
{ printf %s "$head" && tail -c $image "$tensor"; } |
  curl --fail-with-body --silent --show-error --data-binary @- --output answer.bin \
    -H "x-blurfleet-contract: $contract" -H "Inference-Header-Content-Length: ${#head}" \
    "http://$door/v2/models/bokeh/infer"
tail -c $matte answer.bin >matte.f32
