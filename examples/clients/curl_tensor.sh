#!/bin/sh
# A ready tensor through KServe v2, binary both ways: curl_tensor.sh 127.0.0.1:8090 HASH tensor.npy [SIDE]
# leaves the matte as SIDE x SIDE little-endian float32. HASH is what `blurfleet contract hash` prints of the contract
# that is served, SIDE its height and width in pixels (320 without it).
set -eu
door=$1 contract=$2 tensor=$3 side=${4:-320}
image=$((12 * side * side)) matte=$((4 * side * side)) # bytes of [1,3,SIDE,SIDE] and [1,1,SIDE,SIDE]
head='{"inputs":[{"name":"image","datatype":"FP32","shape":[1,3,'$side','$side'],'
head=$head'"parameters":{"binary_data_size":'$image'}}],'
head=$head'"outputs":[{"name":"matte","parameters":{"binary_data":true}}]}'
{ printf %s "$head" && tail -c $image "$tensor"; } |
  curl --fail-with-body --silent --show-error --data-binary @- --output answer.bin \
    -H "x-blurfleet-contract: $contract" -H "Inference-Header-Content-Length: ${#head}" \
    "http://$door/v2/models/bokeh/infer"
tail -c $matte answer.bin >matte.f32
