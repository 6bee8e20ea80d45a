// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/flat_tensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop::deepspeed {
namespace {

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all files of its folder again";

/// Iterates over the elements of all parts in order.
class Walk {
 public:
  explicit Walk(const std::vector<Part>& parts) : parts_(parts) {}

  /// Takes the next `count` elements; `what` names them. Throws Error{Format} if the parts end
  /// before.
  std::vector<Piece> take(std::int64_t count, const std::string& what) {
    std::vector<Piece> out;
    while (count > 0) {
      while (rank_ < parts_.size() && at_ == parts_[rank_].numel) {
        ++rank_;
        at_ = 0;
      }
      TESSERA_REQUIRE(
          rank_ < parts_.size(),
          Format,
          fmt::format("{}: the ranks' parts end before {}", parts_.back().file.string(), what),
          kCopy);
      const std::int64_t held = std::min(count, parts_[rank_].numel - at_);
      out.push_back({rank_, at_, held});
      at_ += held;
      count -= held;
    }
    return out;
  }
  [[nodiscard]] std::int64_t left() const {
    std::int64_t out = -at_;
    for (std::size_t rank = rank_; rank < parts_.size(); ++rank)
      out += parts_[rank].numel;
    return out;
  }

 private:
  const std::vector<Part>& parts_;
  std::size_t rank_ = 0;
  std::int64_t at_ = 0;  // position in the current rank's part
};

/// Number of elements after each parameter that align the next one (parameter_alignment); none in
/// files of older versions. Every rank stores them for the whole group.
std::vector<std::int64_t> paddings_of(const Part& part, std::size_t number, std::size_t count) {
  const json::Value* groups = at_path(part.values, "optimizer_state_dict.param_alignment_paddings");
  std::vector<std::int64_t> out(count, 0);
  if (groups == nullptr || groups->is_null()) return out;
  const json::Value* listed = at_path(*groups, std::to_string(number));
  bool sound = listed != nullptr && listed->is_array() && listed->items().size() == count;
  for (std::size_t i = 0; sound && i < count; ++i) {
    const json::Value& padding = listed->items()[i];
    out[i] = padding.is_number() ? padding.as_integer().value_or(-1) : -1;
    sound = out[i] >= 0;
  }
  TESSERA_REQUIRE(sound,
                  Format,
                  fmt::format("{}: its param_alignment_paddings of group {} are not those of {} "
                              "parameters",
                              part.file.string(),
                              number,
                              count),
                  kCopy);
  return out;
}

/// A rank's fragment of a parameter: elements from `start` of its part on.
struct Fragment {
  std::int64_t start = 0, numel = 0;
  bool operator==(const Fragment&) const = default;
};
using Fragments = std::map<std::string, Fragment>;

/// The file's mapping of a group; nothing in files of old versions.
std::optional<Fragments> mapping_of(const Part& part, std::size_t number) {
  const json::Value* listed =
      at_path(part.values, fmt::format("optimizer_state_dict.param_slice_mappings.{}", number));
  if (listed == nullptr || !listed->is_object()) return std::nullopt;
  Fragments out;
  for (const auto& [name, address] : listed->members()) {
    Fragment fragment{integer_at(address, "state.start", -1),
                      integer_at(address, "state.numel", -1)};
    const json::Value* arguments = address.is_object() ? address.find("arguments") : nullptr;
    if (fragment.start < 0 && arguments != nullptr && arguments->is_array() &&
        arguments->items().size() == 2) {
      fragment = {integer_at(*arguments, "1", -1), integer_at(*arguments, "0", -1)};
    }
    TESSERA_REQUIRE(
        fragment.start >= 0 && fragment.numel >= 0,
        Format,
        fmt::format(
            "{}: state.start or state.numel of {} is not a count", part.file.string(), name),
        kCopy);
    out.emplace(name, fragment);
  }
  return out;
}

/// A parameter whose position differs between the two, or that only one of them has.
std::optional<std::string> first_difference(const Fragments& a, const Fragments& b) {
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [name, fragment] : *one) {
      const auto found = other->find(name);
      if (found == other->end() || found->second != fragment) return name;
    }
  }
  return std::nullopt;
}

void check_mappings(const std::vector<Part>& parts,
                    const std::vector<Parameter>& parameters,
                    const std::vector<std::vector<Piece>>& pieces,
                    std::size_t number) {
  std::vector<Fragments> placed(parts.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const Piece& piece : pieces[i])
      placed[piece.rank].emplace(parameters[i].name, Fragment{piece.begin, piece.count});
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const auto mapping = mapping_of(parts[rank], number);
    if (!mapping) continue;
    const auto other = first_difference(placed[rank], *mapping);
    TESSERA_REQUIRE(!other,
                    Format,
                    fmt::format("{}: its param_slice_mappings have {} in another place than "
                                "the order of param_shapes",
                                parts[rank].file.string(),
                                *other),
                    "the files are of two trainings, or damaged: copy all of one folder again");
  }
}

}  // namespace

bool mappings_hold(const json::Value& model_states) {
  const json::Value* config = at_path(model_states, "ds_config");
  // If the configuration is absent or a path, it is not known.
  if (config == nullptr || !config->is_object()) return false;
  const json::Value* shuffled = at_path(*config, "zero_optimization.round_robin_gradients");
  return shuffled == nullptr || (shuffled->is_bool() && !shuffled->as_bool());
}

std::vector<std::vector<Piece>> pieces_of(const std::vector<Part>& parts,
                                          const std::vector<Parameter>& parameters,
                                          std::size_t number,
                                          bool mapped) {
  const auto paddings = paddings_of(parts.front(), number, parameters.size());
  std::vector<std::vector<Piece>> out;
  Walk walk(parts);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    out.push_back(walk.take(parameter.numel, fmt::format("parameter {}", parameter.name)));
    walk.take(paddings[i], fmt::format("the padding of parameter {}", parameter.name));
  }
  // The remainder is padding: less than the unit to which DeepSpeed rounds up.
  TESSERA_REQUIRE(walk.left() < 4 * static_cast<std::int64_t>(parts.size()),
                  Format,
                  fmt::format("{}: {} values of group {} belong to no parameter",
                              parts.back().file.string(),
                              walk.left(),
                              number),
                  kCopy);
  if (mapped) check_mappings(parts, parameters, out, number);
  return out;
}

}  // namespace tessera::interop::deepspeed
