// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/output_progress.h"

#include <algorithm>
#include <array>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// Flags that change no line of an output; those with a value are followed by it.
constexpr std::array<std::string_view, 12> kWithValue = {"-n",
                                                         "--nproc-per-node",
                                                         "--nproc_per_node",
                                                         "--num-gpus",
                                                         "--num_gpus",
                                                         "--num-accelerators",
                                                         "--num_accelerators",
                                                         "--threads",
                                                         "--batch",
                                                         "--batch-size",
                                                         "--batch_size",
                                                         "--out"};
constexpr std::array<std::string_view, 4> kAlone = {"-q", "--quiet", "-v", "--verbose"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& flags, std::string_view word) {
  return std::ranges::find(flags, word) != flags.end();
}

std::string stamp_of(const fs::path& file) {
  std::error_code unknown;
  const auto size = fs::file_size(file, unknown);
  const auto time = fs::last_write_time(file, unknown).time_since_epoch().count();
  return fmt::format("{} {} {}\n", file.string(), unknown ? 0 : size, unknown ? 0 : time);
}

}  // namespace

void require_other_file(const fs::path& in, const fs::path& out) {
  std::error_code unknown;
  TESSERA_REQUIRE(
      out.empty() || !fs::is_regular_file(out, unknown) || !fs::equivalent(in, out, unknown),
      Config,
      fmt::format("--out {} is the file that is read", out.string()),
      "choose another --out");
}

std::string command_text(std::string_view command,
                         const std::vector<std::string>& line,
                         const std::vector<fs::path>& inputs) {
  std::string out = fmt::format("{}\n", command);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::string_view word = line[i];
    const std::string_view flag = word.substr(0, word.find('='));
    if (is_one_of(kAlone, word)) continue;
    if (is_one_of(kWithValue, flag)) {
      if (flag == word) ++i;
      continue;
    }
    out += fmt::format("{}\n", word);
  }
  for (const fs::path& input : inputs) {
    std::vector<std::string> stamps = {stamp_of(input)};
    std::error_code ignored;
    for (fs::directory_iterator at(input, ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      if (at->is_regular_file(ignored)) stamps.push_back(stamp_of(at->path()));
    }
    std::ranges::sort(stamps);
    for (const std::string& stamp : stamps)
      out += stamp;
  }
  return out;
}

OutputProgress::OutputProgress(fs::path out, const std::string& command)
    : out_(std::move(out)),
      hash_(fmt::format("{:016x}", files::xxh3(std::as_bytes(std::span(command))))) {}

fs::path OutputProgress::note() const {
  return out_.string() + ".progress";
}

MadeLines OutputProgress::kept(MadeLines made, std::size_t all) const {
  std::error_code unknown;
  if (made.count == 0 || !fs::is_regular_file(note(), unknown))
    return made.count < all ? made : MadeLines{};
  TESSERA_REQUIRE(files::read(note()) == hash_ + '\n',
                  Config,
                  fmt::format("{} was begun with another model, other data or other options, and "
                              "is not finished",
                              out_.string()),
                  fmt::format("remove it, and {}, or choose another --out", note().string()));
  return made;
}

void OutputProgress::begin() const {
  std::error_code unknown;
  if (!fs::is_regular_file(out_, unknown)) return;
  try {
    files::write_atomic(note(), hash_ + '\n');
  } catch (const Error&) {  // such as in a folder that cannot be written
  }
}

void OutputProgress::finish() const {
  std::error_code ignored;
  if (!out_.empty() && fs::is_regular_file(note(), ignored)) fs::remove(note(), ignored);
}

}  // namespace tessera::cli
