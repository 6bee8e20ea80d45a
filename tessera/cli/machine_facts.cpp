// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <torch/headeronly/version.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/facts.h"
#include "tessera/engine/launch.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/memory/device.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/peak.h"

namespace tessera::cli {
namespace {

json::Value integer(std::uint64_t value) {
  return json::Value::integer(static_cast<std::int64_t>(value));
}

json::Value strings(const std::vector<std::string>& list) {
  json::Value out = json::Value::array();
  for (const std::string& item : list)
    out.push_back(json::Value::string(item));
  return out;
}

void add_cpu(Facts& facts, const launch::Machine& machine) {
  facts.push_back({"host", "host", machine.host, json::Value::string(machine.host)});
  facts.push_back({"kernel", "kernel", machine.kernel, json::Value::string(machine.kernel)});
  facts.push_back({"cpu", "processor", machine.cpu, json::Value::string(machine.cpu)});
  facts.push_back({"isa", "instruction sets", text::join(machine.isa, " "), strings(machine.isa)});
  const std::string variant(ops::name(ops::isa()));
  facts.push_back(
      {"kernels",
       "kernels used",
       fmt::format("{} ({})",
                   variant,
                   ops::native_bf16() ? "bf16 products in hardware" : "bf16 products in fp32"),
       json::Value::string(variant)});
  facts.push_back({"processors", "", "", json::Value::integer(machine.processors)});
  facts.push_back({"affinity", "", "", integer(machine.affinity.size())});
  if (machine.cpu_quota)
    facts.push_back({"cpu_quota", "", "", json::Value::number(*machine.cpu_quota)});
  const std::string quota = machine.cpu_quota ? fmt::format("{:.1f}", *machine.cpu_quota) : "none";
  facts.push_back({"usable_cores",
                   "cores",
                   fmt::format("{} usable ({} online, {} in this process's mask, quota {})",
                               machine.usable_cores,
                               machine.processors,
                               machine.affinity.size(),
                               quota),
                   json::Value::integer(machine.usable_cores)});
}

void add_memory(Facts& facts, const launch::Machine& machine) {
  const std::string limit = machine.memory_limit
                                ? fmt::format("{}, {} of it left",
                                              text::bytes(*machine.memory_limit),
                                              text::bytes(machine.memory_left.value_or(0)))
                                : "none";
  facts.push_back({"memory_total_bytes", "", "", integer(machine.memory_total)});
  facts.push_back({"memory_available_bytes",
                   "memory",
                   fmt::format("{} available of {}; limit of the control group: {}",
                               text::bytes(machine.memory_available),
                               text::bytes(machine.memory_total),
                               limit),
                   integer(machine.memory_available)});
  if (machine.memory_limit)
    facts.push_back({"memory_limit_bytes", "", "", integer(*machine.memory_limit)});
  facts.push_back({"usable_memory_bytes",
                   "for ranks",
                   text::bytes(launch::available_memory()),
                   integer(launch::available_memory())});
  facts.push_back({"huge_pages",
                   "huge pages",
                   machine.huge_pages.empty() ? "unknown" : machine.huge_pages,
                   json::Value::string(machine.huge_pages)});
}

/// Free space on the disk of the nearest existing folder at or above `path`.
std::uint64_t free_disk(std::filesystem::path path) {
  path = std::filesystem::absolute(path);
  while (!std::filesystem::exists(path) && path != path.root_path())
    path = path.parent_path();
  return files::free_bytes(path);
}

void add_disk(Facts& facts) {
  const std::string cache = files::cache_dir().string();
  facts.push_back({"disk_free_bytes",
                   "disk",
                   text::bytes(free_disk(".")) + " free here",
                   integer(free_disk("."))});
  facts.push_back({"cache",
                   "cache",
                   fmt::format("{} ({} free)", cache, text::bytes(free_disk(cache))),
                   json::Value::string(cache)});
}

void add_limits(Facts& facts, const launch::Machine& machine) {
  json::Value values = json::Value::object();
  const auto words = [](const std::optional<std::uint64_t>& bound) {
    return bound ? std::to_string(*bound) : std::string("unlimited");
  };
  std::vector<std::string> list;
  for (const auto& limit : machine.limits) {
    list.push_back(fmt::format("{} {}", limit.name, words(limit.soft)));
    values[limit.name] = json::Value::string(words(limit.soft));
  }
  facts.push_back({"limits", "limits", text::join(list, ", "), values});
}

/// The GPUs, or why there are none, and the libraries that a rank loads for them.
void add_devices(Facts& facts) {
  for (const std::string& name : memory::devices().names()) {
    const memory::DeviceEntry& entry = memory::devices().get(name);
    if (entry.shared) continue;
    std::vector<std::string> list;
    for (const memory::DeviceInfo& info : entry.found()) {
      const std::string busy = entry.busy == nullptr ? "" : entry.busy({entry.kind, info.index});
      list.push_back(fmt::format("{}:{} {} with {}{}",
                                 name,
                                 info.index,
                                 info.name,
                                 text::bytes(static_cast<std::uint64_t>(info.bytes)),
                                 busy.empty() ? "" : " (" + busy + ")"));
    }
    facts.push_back({name,
                     name,
                     list.empty() ? "none: " + entry.why_not() : text::join(list, ", "),
                     strings(list)});
    if (entry.libraries == nullptr) continue;
    const std::vector<std::string> libraries = entry.libraries();
    facts.push_back({name + "_libraries",
                     list.empty() ? "" : name + " libraries",
                     text::join(libraries, ", "),
                     strings(libraries)});
  }
}

void add_speeds(Facts& facts, const launch::Machine& machine) {
  engine::prepare_process(machine.usable_cores);
  const auto add = [&](const char* key, const char* label, double value, const char* unit) {
    facts.push_back(
        {key,
         label,
         fmt::format("{:.1f} {} with {} threads", value / 1e9, unit, machine.usable_cores),
         json::Value::number(value)});
  };
  add("memory_bytes_per_s", "memory speed", ops::peak_bytes(), "GB/s");
  add("fp32_flops_per_s", "fp32 products", ops::peak_flops(DType::F32), "GFLOP/s");
  add("bf16_flops_per_s", "bf16 products", ops::peak_flops(DType::BF16), "GFLOP/s");
}

}  // namespace

Facts machine_facts() {
  const launch::Machine machine = launch::machine();
  Facts facts;
  add_cpu(facts, machine);
  add_memory(facts, machine);
  add_disk(facts);
  add_limits(facts, machine);
  facts.push_back({"libtorch", "libtorch", TORCH_VERSION, json::Value::string(TORCH_VERSION)});
  facts.push_back({"transports",
                   "transports",
                   "threads, shm, gloo between hosts, nccl between GPUs",
                   strings({"threads", "shm"})});
  add_devices(facts);
  add_speeds(facts, machine);
  return facts;
}

}  // namespace tessera::cli
