#!/bin/sh
# certificates.sh HOST [USER...]: makes certificates/ca.crt, which clients are given; one for the
# broker under HOST (a name, or an IP address); and one for each USER. What is there stays.
set -eu
umask 077
host=${1:?usage: certificates.sh HOST [USER...]}
shift
mkdir -p certificates
cd certificates

key() {
    [ -e "$1.key" ] || openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
}

# sign NAME COMMON-NAME EXTENSIONS
sign() {
    [ ! -e "$1.crt" ] || return 0
    key "$1"
    printf '%s\n' "$3" >"$1.ext"
    openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial \
        -days 825 -sha256 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

if [ ! -e ca.crt ]; then
    key ca
    openssl req -x509 -new -key ca.key -sha256 -days 3650 -subj "/CN=batchdeck broker CA" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
fi

case $host in
*:*) name=IP ;;
*[!0-9.]*) name=DNS ;;
*) name=IP ;;
esac
sign server "$host" "subjectAltName=$name:$host
extendedKeyUsage=serverAuth"

for user in "$@"; do
    sign "$user" "$user" "extendedKeyUsage=clientAuth"
done
chmod a+r ./*.crt
