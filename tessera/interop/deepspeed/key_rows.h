// SPDX-License-Identifier: Apache-2.0
// Helper functions that construct the rows of the table of DeepSpeed's keys.
#pragma once

#include <span>
#include <string_view>

#include "tessera/interop/deepspeed/keys.h"

namespace tessera::interop::rows {

using Text = std::string_view;

constexpr DeepSpeedKey done(Text path, KeyType type, Text initial = "") {
  return {path, type, KeyPolicy::Done, initial, "", "", "", ""};
}
constexpr DeepSpeedKey section(Text path) {
  return {path, KeyType::Object, KeyPolicy::Section, "", "", "", "", ""};
}
constexpr DeepSpeedKey inside(Text path, KeyType type, Text initial = "") {
  return {path, type, KeyPolicy::Inside, initial, "", "", "", ""};
}
constexpr DeepSpeedKey accepted(Text path, KeyType type, Text initial, Text why) {
  return {path, type, KeyPolicy::Accepted, initial, why, "", "", ""};
}
/// `off`: the values that false and true stand for, if the other key is not a boolean.
constexpr DeepSpeedKey alias(Text path, KeyType type, Text other, Text off = "") {
  return {path, type, KeyPolicy::Alias, "", other, off, "", ""};
}
constexpr DeepSpeedKey later(
    Text path, KeyType type, Text initial, Text off, Text why, Text fix, Text moot = "") {
  return {path, type, KeyPolicy::Later, initial, why, off, fix, moot};
}
constexpr DeepSpeedKey never(
    Text path, KeyType type, Text initial, Text off, Text why, Text fix, Text moot = "") {
  return {path, type, KeyPolicy::Never, initial, why, off, fix, moot};
}

/// Returns one of the two parts of the table: keys of training, and keys of the blocks around it.
std::span<const DeepSpeedKey> training_rows();
std::span<const DeepSpeedKey> block_rows();

}  // namespace tessera::interop::rows
