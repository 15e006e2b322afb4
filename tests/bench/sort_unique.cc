// SPDX-License-Identifier: LGPL-2.1-or-later
// What a fuzzer's executor does to a coverage buffer: std::sort and std::unique. Prints the best time, in nanoseconds.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	std::FILE *file = std::fopen(argv[1], "rb");
	std::vector<std::uint64_t> words;
	std::uint64_t chunk[4096];
	long long best = -1;
	std::size_t distinct = 0;

	if (!file)
		return 1;
	while (std::size_t got = std::fread(chunk, 8, 4096, file))
		words.insert(words.end(), chunk, chunk + got);
	for (int round = std::atoi(argv[2]); round > 0; round--) {
		std::vector<std::uint64_t> copy = words;
		auto start = std::chrono::steady_clock::now();
		std::sort(copy.begin(), copy.end());
		distinct = std::unique(copy.begin(), copy.end()) - copy.begin();
		auto end = std::chrono::steady_clock::now();
		long long took = std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
		if (best < 0 || took < best)
			best = took;
	}
	std::printf("%lld %zu\n", best, distinct);
}
