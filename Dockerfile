# One static binary and the certificates of the public CAs, nothing else, run by user 65532.
#
#   docker build -t registry.example/tidegate:0.1.0 .

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY migrations migrations
# Only because Cargo.toml names them.
COPY benches benches
COPY integration integration
# Static against glibc rather than musl: musl's allocator takes one lock for all threads, which every call would meet.
# With --target the flag is for the binary alone; build scripts and macros can't be static.
RUN target="$(rustc --print host-tuple)" && \
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile dist --locked --bin tidegate --target "$target" && \
    install -D --strip "target/$target/dist/tidegate" /image/bin/tidegate && \
    ln -s tidegate /image/bin/ratelimit && \
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt && \
    echo 'tidegate:x:65532:65532::/:/bin/false' >/image/etc/passwd && \
    echo 'hosts: files dns' >/image/etc/nsswitch.conf

FROM scratch
COPY --from=build /image/ /
ENV PATH=/bin
USER 65532:65532
EXPOSE 8081 8080
# No entrypoint: /bin/ratelimit is the same binary, and compose files for envoyproxy/ratelimit have it as their command.
CMD ["/bin/tidegate", "serve"]
