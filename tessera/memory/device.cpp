// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/device.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"

namespace tessera::memory {
namespace {

/// Reads "0,2".
std::vector<int> indices_of(std::string_view list, std::string_view asked) {
  std::vector<int> out;
  for (const char *at = list.data(), *const end = at + list.size(); at <= end;) {
    int index = -1;
    const auto [after, failure] = std::from_chars(at, end, index);
    TESSERA_REQUIRE(
        failure == std::errc() && index >= 0 && (after == end || *after == ',') &&
            std::find(out.begin(), out.end(), index) == out.end(),
        Config,
        fmt::format("device \"{}\": \"{}\" is not a list of different indices", asked, list),
        "give one index for each rank of a host, such as cuda:0,1");
    out.push_back(index);
    at = after + 1;
  }
  return out;
}

std::string name_of_auto() {
  for (const std::string& name : devices().names()) {
    const DeviceEntry& entry = devices().get(name);
    if (entry.kind != DeviceKind::Cpu && !entry.found().empty()) return name;
  }
  return "cpu";
}

std::vector<DeviceInfo> cpu_found() {
  return {{.index = 0,
           .name = "cpu",
           .bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)}};
}

DeviceUse cpu_use(Device) {
  const Usage usage = current_ledger().usage();
  return {usage.total, usage.total_peak};
}

TESSERA_DEVICE("cpu",
               {.kind = DeviceKind::Cpu,
                .shared = true,
                .found = cpu_found,
                .why_not = [] { return std::string(); },
                .enter = [](Device) {},
                .use = cpu_use});

}  // namespace

Registry<DeviceEntry>& devices() {
  static Registry<DeviceEntry> registry("device");
  return registry;
}

const DeviceEntry& device_entry(DeviceKind kind) {
  for (const std::string& name : devices().names()) {
    if (devices().get(name).kind == kind) return devices().get(name);
  }
  throw Error(Error::Kind::Unsupported,
              fmt::format("no device of kind \"{}\" is registered", name(kind)),
              "load the plugin that registers it (docs/adding/device.md)");
}

DeviceKind device_kind(std::string_view asked) {
  const std::string name =
      asked == "auto" ? name_of_auto() : std::string(asked.substr(0, asked.find(':')));
  return devices().get(name).kind;
}

Device device_of_rank(std::string_view asked, int local_rank, int local_ranks) {
  TESSERA_ASSERT(0 <= local_rank && local_rank < local_ranks);
  const std::size_t colon = std::min(asked.find(':'), asked.size());
  const std::string name = asked == "auto" ? name_of_auto() : std::string(asked.substr(0, colon));
  const DeviceEntry& entry = devices().get(name);
  const std::vector<DeviceInfo> found = entry.found();
  TESSERA_REQUIRE(!found.empty(),
                  Environment,
                  fmt::format("this host has no device \"{}\": {}", name, entry.why_not()),
                  "set run.device (--device) to cpu or auto");
  std::vector<int> indices;
  for (const DeviceInfo& device : found)
    indices.push_back(device.index);
  if (colon < asked.size()) {
    const std::vector<int> known =
        std::exchange(indices, indices_of(asked.substr(colon + 1), asked));
    for (const int index : indices) {
      TESSERA_REQUIRE(
          std::find(known.begin(), known.end(), index) != known.end(),
          Environment,
          fmt::format(
              "this host has no device {}:{}; it has {} of them", name, index, known.size()),
          fmt::format("choose from {} to {}", known.front(), known.back()));
    }
  }
  if (entry.shared) return {entry.kind, indices.front()};
  TESSERA_REQUIRE(
      local_ranks <= std::ssize(indices),
      Environment,
      fmt::format(
          "{} ranks on this host, but {} devices \"{}\"", local_ranks, indices.size(), name),
      fmt::format("start at most {} ranks on this host", indices.size()));
  return {entry.kind, indices[static_cast<std::size_t>(local_rank)]};
}

}  // namespace tessera::memory
