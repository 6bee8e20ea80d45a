// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/record_parts.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"
#include "tessera/data/sample_order.h"
#include "tessera/data/slices.h"

namespace tessera::rlhf {
namespace {
namespace fs = std::filesystem;

constexpr const char* kDescription = "parts.json";

/// Describes what the parts are made of.
std::string description_of(const std::vector<std::string>& files,
                           const std::vector<double>& proportions,
                           std::uint64_t seed) {
  json::Value out = json::Value::object();
  out["seed"] = json::Value::string(std::to_string(seed));
  out["proportions"] = json::Value::array();
  for (const double proportion : proportions)
    out["proportions"].push_back(json::Value::number(proportion));
  out["files"] = json::Value::array();
  for (const std::string& file : files) {
    files::Hasher hasher;
    const std::string bytes = files::read(data::cut_slice(file).name);
    hasher.update(std::as_bytes(std::span(bytes)));
    out["files"].push_back(
        json::Value::object({{"path", json::Value::string(fs::absolute(file).string())},
                             {"hash", json::Value::string(files::hex64(hasher.digest()))}}));
  }
  return out.dump() + "\n";
}

/// Returns the number of the part of each record.
std::vector<std::uint8_t> parts_of(std::int64_t records,
                                   const std::vector<double>& proportions,
                                   std::uint64_t seed) {
  const double whole = std::accumulate(proportions.begin(), proportions.end(), 0.0);
  const data::SampleOrder order(records, /*shuffle=*/true, seed);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(records));
  double before = 0;
  std::int64_t position = 0;
  for (std::size_t part = 0; part < proportions.size(); ++part) {
    before += proportions[part];
    const auto end = static_cast<std::int64_t>(
        std::llround(static_cast<double>(records) * std::min(1.0, before / whole)));
    TESSERA_REQUIRE(end > position || proportions[part] == 0,
                    Data,
                    fmt::format("part {} of {} records has none", part + 1, records),
                    "give more records, or a larger proportion in \"split\"");
    for (; position < end; ++position)
      out[static_cast<std::size_t>(order(0, position))] = static_cast<std::uint8_t>(part);
  }
  return out;
}

}  // namespace

std::vector<fs::path> write_parts(const std::vector<std::string>& names,
                                  const std::vector<double>& proportions,
                                  std::uint64_t seed,
                                  const fs::path& folder) {
  const std::vector<std::string> sources = data::record_files(names, data::Split::Train);
  const std::string description = description_of(sources, proportions, seed);
  std::vector<fs::path> out;
  for (std::size_t part = 1; part <= proportions.size(); ++part)
    out.push_back(folder / fmt::format("part-{}.jsonl", part));
  // The description is written last.
  if (fs::exists(folder / kDescription) && files::read(folder / kDescription) == description)
    return out;
  const auto each = [&](const data::TakeRecord& take) {
    return data::for_each_record(sources, {}, take).records;
  };
  const std::vector<std::uint8_t> parts =
      parts_of(each([](const data::Record&) {}), proportions, seed);
  fs::create_directories(folder);
  fs::remove(folder / kDescription);
  std::vector<std::ofstream> files;
  for (const fs::path& path : out)
    files.emplace_back(path, std::ios::trunc);
  std::size_t number = 0;
  each([&](const data::Record& record) {
    files[parts.at(number++)] << record.value.dump() << '\n';
  });
  for (std::size_t part = 0; part < files.size(); ++part) {
    files[part].flush();
    TESSERA_REQUIRE(files[part].good(),
                    Io,
                    fmt::format("cannot write {}", out[part].string()),
                    "free disk space, or choose another \"dir\"");
  }
  files::write_atomic(folder / kDescription, description);
  return out;
}

}  // namespace tessera::rlhf
