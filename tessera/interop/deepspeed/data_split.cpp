// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/data_split.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/records.h"
#include "tessera/interop/deepspeed/chat_records.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// A number from 0 to `most` as numpy's RandomState draws it: bits of the generator under the
/// smallest mask that covers `most`, until one fits.
std::uint32_t interval(std::mt19937& generator, std::uint32_t most) {
  std::uint32_t mask = most;
  for (const unsigned shift : {1U, 2U, 4U, 8U, 16U})
    mask |= mask >> shift;
  while (true) {
    const auto value = static_cast<std::uint32_t>(generator()) & mask;
    if (value <= most) return value;
  }
}

std::string name_of_part(const std::vector<std::string>& files,
                         const std::vector<double>& shares,
                         std::size_t part,
                         std::uint32_t seed,
                         const std::string& dataset,
                         ChatRecords which) {
  std::string key = fmt::format("{} {}{}", part, seed, dataset);
  if (which != ChatRecords::All) key += fmt::format(" {} of 9,1", static_cast<int>(which));
  for (const double share : shares)
    key += fmt::format(" {}", share);
  for (const std::string& file : files) {
    std::error_code failed;
    const auto time = fs::last_write_time(file, failed).time_since_epoch().count();
    key += fmt::format(" {} {} {}", fs::absolute(file).string(), fs::file_size(file, failed), time);
  }
  return fmt::format("{:016x}.jsonl", XXH3_64bits(key.data(), key.size()));
}

}  // namespace

std::vector<std::uint32_t> chat_part(const std::vector<double>& shares,
                                     std::size_t part,
                                     std::uint32_t seed,
                                     std::uint32_t size) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<std::int64_t> ends = {0};
  // Python rounds halves to even numbers, as the default mode of nearbyint does.
  for (const double share : shares)
    ends.push_back(ends.back() + static_cast<std::int64_t>(
                                     std::nearbyint(share / sum * static_cast<double>(size))));
  const std::int64_t excess = ends.back() - size;
  for (std::size_t i = 1; i < ends.size(); ++i)
    ends[i] -= excess;
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937 generator(seed);
  for (std::uint32_t i = size; i > 1; --i)
    std::swap(order[i - 1], order[interval(generator, i - 1)]);
  const auto begin = std::clamp<std::int64_t>(ends[part], 0, size),
             end = std::clamp<std::int64_t>(ends[part + 1], begin, size);
  return {order.begin() + begin, order.begin() + end};
}

std::vector<std::uint32_t> chat_part(ChatRecords records,
                                     const std::vector<double>& shares,
                                     std::size_t part,
                                     std::uint32_t seed,
                                     std::uint32_t size) {
  if (records == ChatRecords::All) return chat_part(shares, part, seed, size);
  const std::vector<std::uint32_t> divided =
      chat_part({9, 1}, records == ChatRecords::Training ? 0 : 1, seed, size);
  std::vector<std::uint32_t> out =
      chat_part(shares, part, seed, static_cast<std::uint32_t>(divided.size()));
  for (std::uint32_t& index : out)
    index = divided[index];
  return out;
}

fs::path write_chat_part(const std::vector<std::string>& files,
                         const std::vector<double>& shares,
                         std::size_t part,
                         std::uint32_t seed,
                         const std::string& dataset,
                         ChatRecords which) {
  const fs::path folder = files::cache_dir() / "parts";
  const bool own = has_own_fields(dataset);
  const fs::path path = folder / name_of_part(files, shares, part, seed, own ? dataset : "", which);
  std::error_code failed;
  if (fs::exists(path, failed)) return path;
  // An empty one has no question or no answer: it counts where the records are divided.
  std::vector<std::string> records;
  data::for_each_record(
      data::record_files(files, data::Split::Train), {}, [&](const data::Record& record) {
        const std::optional<json::Value> chat =
            own ? chat_record(dataset, record.value) : record.value;
        records.push_back(chat ? chat->dump() : std::string());
      });
  std::string out;
  for (const std::uint32_t index :
       chat_part(which, shares, part, seed, static_cast<std::uint32_t>(records.size()))) {
    if (!records[index].empty()) out += records[index] + "\n";
  }
  if (out.empty() && which == ChatRecords::Evaluation) return {};
  TESSERA_REQUIRE(!out.empty(),
                  Data,
                  fmt::format("--data_split leaves this step no record of {}", files.front()),
                  "give the step a share above 0");
  fs::create_directories(folder, failed);
  files::write_atomic(path, out);
  return path;
}

}  // namespace tessera::interop
