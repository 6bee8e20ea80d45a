// SPDX-License-Identifier: Apache-2.0
// tessera bench io: measures how fast a disk reads and writes what rests on it while training.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/memory/pages.h"
#include "tessera/memory/tiers/measure.h"

namespace tessera::cli {
namespace {

constexpr double kMiB = 1 << 20;

struct IoFlags {
  std::string folder, blocks = "0.25,1,4", depths = "1,4,8,16", access = "direct";
  double size = 256, seconds = 60;
  Common common;
};

bool parse(IoFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "bench io",
      "Measures how fast the disk of a folder writes, reads, and reads while as much is written, "
      "for "
      "every size of a block and number of transfers at a time, as a training with "
      "offload_optimizer or offload_param does it. The last line has the best values as keys of a "
      "configuration; the speed is kept, so that --dry-run can say what the disk needs in a step. "
      "The "
      "files have no names, and nothing remains of them.",
      {"tessera bench io /mnt/nvme",
       "tessera bench io /mnt/nvme --blocks 1,2 --depths 4,8,32 --size 1024",
       "tessera bench io /mnt/nvme --access both",
       "tessera bench io /mnt/nvme --json"});
  arguments.positional("FOLDER", &words.folder, "A folder on the disk");
  arguments.option("--blocks", &words.blocks, "Block sizes in MiB, comma-separated [0.25,1,4]");
  arguments.option(
      "--depths", &words.depths, "Transfers at a time, comma-separated, at most 64 [1,4,8,16]");
  arguments.option("--access",
                   &words.access,
                   "direct (past the page cache, as in a training), buffered or both [direct]");
  arguments.option(
      "--size", &words.size, "MiB of each measurement; the disk needs twice as much [256]");
  arguments.option("--seconds",
                   &words.seconds,
                   "Time for all measurements; those that do not fit are left out [60]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

std::vector<double> numbers_of(
    const char* flag, const std::string& list, double least, double most, const char* fix) {
  std::vector<double> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string word = list.substr(begin, end - begin);
    char* rest = nullptr;
    const double number = std::strtod(word.c_str(), &rest);
    TESSERA_REQUIRE(!word.empty() && *rest == '\0' && number >= least && number <= most,
                    Config,
                    fmt::format("{} {}: \"{}\" is not a number from {} to {}",
                                flag,
                                list,
                                word,
                                text::number(least),
                                text::number(most)),
                    fix);
    out.push_back(number);
    begin = end + 1;
  }
  return out;
}

/// All options that are measured, in order.
std::vector<memory::TierOptions> options_of(const IoFlags& words) {
  const auto blocks = numbers_of(
      "--blocks", words.blocks, 4096 / kMiB, 256, "give comma-separated MiB: --blocks 0.25,1,4");
  const auto depths = numbers_of("--depths",
                                 words.depths,
                                 1,
                                 memory::kMostTransfers,
                                 "give comma-separated numbers of transfers: --depths 1,4,8");
  const std::vector<std::string> known = {"direct", "buffered", "both"};
  TESSERA_REQUIRE(std::ranges::find(known, words.access) != known.end(),
                  Config,
                  fmt::format("--access {}: expected {}", words.access, text::join(known, ", ")),
                  text::suggestion(words.access, known));
  std::vector<memory::TierOptions> out;
  for (const bool direct : {true, false}) {
    if (words.access == (direct ? "buffered" : "direct")) continue;
    for (const double block : blocks) {
      for (const double depth : depths) {
        const auto bytes = static_cast<std::size_t>(block * kMiB);
        out.push_back(
            {.folder = words.folder,
             .block_bytes = static_cast<std::int64_t>(memory::round_up(bytes, memory::kPageBytes)),
             .transfers = static_cast<int>(depth),
             .direct = direct});
      }
    }
  }
  return out;
}

void check(const IoFlags& words) {
  TESSERA_REQUIRE(!words.folder.empty(),
                  Config,
                  "no folder is named",
                  "name one on the disk: tessera bench io /mnt/nvme");
  std::error_code ignored;
  TESSERA_REQUIRE(std::filesystem::is_directory(words.folder, ignored) &&
                      ::access(words.folder.c_str(), W_OK | X_OK) == 0,
                  Io,
                  words.folder + " is not a folder in which files can be made",
                  "create the folder, or name another one");
  TESSERA_REQUIRE(words.size >= 1 && words.size <= 1 << 20,
                  Config,
                  fmt::format("--size {}: expected 1 to 1048576 MiB", text::number(words.size)),
                  "");
  TESSERA_REQUIRE(words.seconds > 0 && words.seconds <= 86'400,
                  Config,
                  fmt::format("--seconds {}: expected more than 0 and at most 86400",
                              text::number(words.seconds)),
                  "");
  const auto need = static_cast<std::uint64_t>(2 * words.size * kMiB);
  const std::uint64_t free = files::free_bytes(words.folder);
  TESSERA_REQUIRE(need <= free,
                  Io,
                  fmt::format("{} has {} free, and the measurement needs {}",
                              words.folder,
                              text::bytes(free),
                              text::bytes(need)),
                  "give a smaller --size, or another folder");
}

json::Value speed_json(const memory::TierSpeed& speed) {
  json::Value out;
  out["block_size"] = json::Value::integer(speed.options.block_bytes);
  out["queue_depth"] = json::Value::integer(speed.options.transfers);
  out["access"] = json::Value::string(speed.options.direct ? "direct" : "buffered");
  out["write_bytes_per_s"] = json::Value::number(speed.write);
  out["read_bytes_per_s"] = json::Value::number(speed.read);
  out["read_beside_write_bytes_per_s"] = json::Value::number(speed.read_beside_write);
  return out;
}

std::string speed_line(const memory::TierSpeed& speed) {
  return fmt::format("{:<10} {:>5} {:<8} {:>10.2f} {:>9.2f} {:>22.2f}",
                     text::bytes(static_cast<std::uint64_t>(speed.options.block_bytes)),
                     speed.options.transfers,
                     speed.options.direct ? "direct" : "buffered",
                     speed.write / 1e9,
                     speed.read / 1e9,
                     speed.read_beside_write / 1e9);
}

json::Value keys_of(const memory::TierOptions& options) {
  json::Value out;
  out["aio"]["block_size"] = json::Value::integer(options.block_bytes);
  out["aio"]["queue_depth"] = json::Value::integer(options.transfers);
  return out;
}

}  // namespace

int bench_io(const std::vector<std::string>& line) {
  IoFlags words;
  if (!parse(words, line)) return kExitOk;
  const std::vector<memory::TierOptions> all = options_of(words);
  check(words);
  const bool table = !words.common.json && !words.common.quiet;
  if (table) {
    std::printf("%s\n",
                fmt::format("{:<10} {:>5} {:<8} {:>10} {:>9} {:>22}",
                            "block",
                            "depth",
                            "access",
                            "write GB/s",
                            "read GB/s",
                            "read while writing GB/s")
                    .c_str());
    std::fflush(stdout);
  }
  const double start = now_s();
  std::vector<memory::TierSpeed> speeds;
  for (const memory::TierOptions& options : all) {
    if (!speeds.empty() && now_s() - start > words.seconds) break;
    speeds.push_back(memory::measure_disk(options, static_cast<std::int64_t>(words.size * kMiB)));
    if (words.common.json) std::printf("%s\n", speed_json(speeds.back()).dump().c_str());
    if (table) std::printf("%s\n", speed_line(speeds.back()).c_str());
    std::fflush(stdout);
  }
  if (table && speeds.size() < all.size()) {
    std::printf("%s\n",
                fmt::format("{} of {} measurements are left out (--seconds)",
                            all.size() - speeds.size(),
                            all.size())
                    .c_str());
  }
  // A training always asks for direct access.
  std::erase_if(speeds, [](const memory::TierSpeed& speed) { return !speed.options.direct; });
  if (const memory::TierSpeed* const best = memory::fastest(speeds)) {
    memory::remember_speed(*best);
    std::printf("%s\n", keys_of(best->options).dump().c_str());
  }
  require_output_written();
  return kExitOk;
}

}  // namespace tessera::cli
