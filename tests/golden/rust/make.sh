#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Make the images, with both ways to mangle names and both versions of DWARF, by rustc 1.95 and gcc 12.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
echo 'void __sanitizer_cov_trace_pc(void) {}' > "$work/callback.c"
gcc -O2 -c "$work/callback.c" -o "$work/callback.o"
for kind in v0-4 v0-5 legacy-5; do
	# The legacy scheme has become unstable.
	RUSTC_BOOTSTRAP=1 rustc --edition 2021 --crate-type staticlib --emit "obj=$work/rust.o" -C panic=abort -C opt-level=2 -g \
		-Z unstable-options -C "symbol-mangling-version=${kind%-*}" -C "dwarf-version=${kind#*-}" -C codegen-units=1 \
		-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=3 -C llvm-args=-sanitizer-coverage-trace-pc \
		--remap-path-prefix "$(rustc --print sysroot)=/usr" --remap-path-prefix "$PWD=/build" lib.rs
	gcc -g "-gdwarf-${kind#*-}" -O2 -fsanitize-coverage=trace-pc "-ffile-prefix-map=$PWD=/build" -c main.c -o "$work/main.o"
	# What is not here of Rust's libraries is never called.
	gcc -no-pie -nostartfiles -Wl,-e,main -Wl,--build-id=sha1 -Wl,--gc-sections -Wl,--unresolved-symbols=ignore-all \
		"$work/rust.o" "$work/main.o" "$work/callback.o" -o "$work/$kind"
	xz -9e -c "$work/$kind" > "$kind.xz"
done
