// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/device_choice.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/config/overrides.h"

namespace tessera::cli {
namespace {

constexpr const char* kAccelerator = "DS_ACCELERATOR";
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

bool sets_device(const json::Value& source) {
  const json::Value* const run = source.is_object() ? source.find("run") : nullptr;
  return run != nullptr && run->is_object() && run->find("device") != nullptr;
}

void use_accelerator(json::Value& source) {
  const char* const name = std::getenv(kAccelerator);
  if (name == nullptr || !source.is_object() || sets_device(source)) return;
  const std::string_view word = name;
  TESSERA_REQUIRE(word == "cpu" || word == "cuda",
                  Unsupported,
                  fmt::format("{}={}: there is no such device here", kAccelerator, name),
                  fmt::format("unset {}, or set it to cpu or cuda", kAccelerator));
  config::set_key(source,
                  "run.device",
                  json::Value::string(std::string(word)),
                  fmt::format("{}={}", kAccelerator, name));
}

}  // namespace

void choose_devices(json::Value& source, const HostChoice& choice) {
  use_accelerator(source);
  if (choice.several || choice.pool.size() != 1 || choice.pool.front().first_ones()) return;
  const std::string slots = choice.pool.front().list();
  const char* const before = std::getenv(kVisible);
  if (before != nullptr && slots != before)
    log::warn(fmt::format(
        "{}={} is replaced by the slots of the command line: {}", kVisible, before, slots));
  setenv(kVisible, slots.c_str(), /*overwrite=*/1);
}

}  // namespace tessera::cli
