// SPDX-License-Identifier: Apache-2.0
// Measures encoding in MB/s on one thread, by GPT-2's BPE or the tokenizer of a file. usage:
// tokenizer_bench [--file tokenizer.json] TEXT... (bench/run_tokenizer.sh compares)
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"

namespace {

constexpr int kRuns = 5;
constexpr int kLinesPerDocument = 200;  // as in the reference script

std::vector<std::string_view> documents_of(std::string_view text) {
  std::vector<std::string_view> documents;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    for (int line = 0; line < kLinesPerDocument && end < text.size(); ++line) {
      end = std::min(text.find('\n', end), text.size() - 1) + 1;
    }
    documents.push_back(text.substr(begin, end - begin));
  }
  return documents;
}

void run(std::vector<std::string> paths) {
  tessera::text::TokenizerOptions options{.type = "gpt2"};
  if (paths.size() > 2 && paths.front() == "--file") {
    options = {.type = "file", .vocab = paths[1]};
    paths.erase(paths.begin(), paths.begin() + 2);
  }
  std::string text;
  for (const std::string& path : paths)
    text += tessera::files::read(path);
  const auto documents = documents_of(text);
  const auto tokenizer = tessera::text::make_tokenizer(options);
  std::vector<double> seconds;
  std::size_t tokens = 0;
  for (int i = 0; i < kRuns; ++i) {
    const double start = tessera::now_s();
    tokens = 0;
    for (const std::string_view document : documents) {
      std::vector<std::int32_t> ids;
      tokenizer->encode(document, ids, false);
      tokens += ids.size();
    }
    seconds.push_back(tessera::now_s() - start);
  }
  const double first = seconds.front();
  std::sort(seconds.begin(), seconds.end());
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  fmt::print(
      "{{\"what\": \"tokenizer\", \"lib\": \"tessera\", \"threads\": 1, \"mb\": {:.2f}, "
      "\"tokens\": {}, "
      "\"mb_per_s\": {:.1f}, \"first_mb_per_s\": {:.1f}}}\n",
      megabytes,
      tokens,
      megabytes / seconds[seconds.size() / 2],
      megabytes / first);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: tokenizer_bench [--file tokenizer.json] TEXT...\n", stderr);
    return 2;
  }
  try {
    run({argv + 1, argv + argc});
  } catch (const tessera::Error& e) {
    std::fputs((e.text() + "\n").c_str(), stderr);
    return tessera::exit_code(e.kind());
  }
}
