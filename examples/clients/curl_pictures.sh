#!/bin/sh
# A picture in, a matte and a picture with a blurred background out: curl_pictures.sh 127.0.0.1:8090 photo.jpg
set -eu
door=$1 photo=$2
curl --fail-with-body --silent --show-error --data-binary "@$photo" --output matte.png "http://$door/v1/matte"
curl --fail-with-body --silent --show-error --data-binary "@$photo" --output blurred.jpg "http://$door/v1/blur?format=jpeg"
