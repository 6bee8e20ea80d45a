// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/node_parts.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigits = 5;

/// Returns the number in a name made by node_part_name().
std::optional<int> node_of(const fs::path& path) {
  const std::string name = path.filename().string();
  int node = 0;
  for (std::size_t i = 5; i < 5 + kDigits && i < name.size(); ++i)
    node = 10 * node + (name[i] - '0');
  return name == node_part_name(node) ? std::optional(node) : std::nullopt;
}

std::string save_text(const Manifest& manifest) {
  return fmt::format("save {} of step {}", files::hex64(manifest.part->save), manifest.meta.step);
}

Manifest read_node_part(const fs::path& path) {
  Manifest out = read_manifest(path);
  TESSERA_REQUIRE(out.part.has_value() && out.part->node == *node_of(path),
                  Format,
                  fmt::format("{}: its contents do not match its name", path.string()),
                  "");
  return out;
}

/// A checkpoint of which a host has a part or, if hosts share it, the whole.
struct Candidate {
  std::uint64_t step = 0, save = 0;
  fs::path folder;
};

bool older(const Candidate& a, const Candidate& b) {
  return std::pair(a.step, a.save) < std::pair(b.step, b.save);
}

std::vector<Candidate> candidates(const fs::path& root) {
  std::vector<Candidate> out;
  std::error_code failed;
  for (fs::directory_iterator at(root, failed), end; !failed && at != end; at.increment(failed)) {
    if (!step_of(at->path()) || !is_checkpoint(at->path())) continue;
    const Checkpoint opened(at->path());
    out.push_back({static_cast<std::uint64_t>(opened.meta().step), opened.save_id(), at->path()});
  }
  std::sort(out.begin(), out.end(), older);
  return out;
}

}  // namespace

std::string node_part_name(int node) {
  return fmt::format("node-{:05}.json", node);
}

std::vector<fs::path> node_parts_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (node_of(at->path())) out.push_back(at->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

JoinedParts join_node_parts(const std::vector<fs::path>& folders) {
  JoinedParts out;
  ManifestJoiner joiner;
  std::map<int, fs::path> found;
  fs::path first;
  for (const fs::path& folder : folders) {
    for (const fs::path& path : node_parts_in(folder)) {
      Manifest part = read_node_part(path);
      if (found.empty()) {
        first = path;
        out.manifest.meta = part.meta;
        out.manifest.part = part.part;
      }
      const NodePart &one = *out.manifest.part, &other = *part.part;
      TESSERA_REQUIRE(one.save == other.save && one.nodes == other.nodes &&
                          out.manifest.meta.step == part.meta.step,
                      Format,
                      fmt::format("{} and {} belong to different checkpoints: {} and {}",
                                  first.string(),
                                  path.string(),
                                  save_text(out.manifest),
                                  save_text(part)),
                      "name the parts of one save");
      if (!found.emplace(other.node, path).second) continue;
      joiner.add(std::move(part), Error::Kind::Format, path.string());
    }
  }
  TESSERA_ASSERT(!found.empty());
  for (int node = 0; node < out.manifest.part->nodes; ++node) {
    if (found.count(node) == 0) out.missing.push_back(node);
  }
  joiner.finish(out.manifest);
  return out;
}

std::optional<fs::path> newest_common(const fs::path& root, const Ranks& ranks) {
  std::vector<Candidate> mine;
  run_together(
      ranks, [&] { mine = candidates(root); }, [] {});
  while (!ranks.any(mine.empty())) {
    const std::uint64_t step = largest(ranks, mine.back().step);
    const bool has_step = mine.back().step == step;
    const std::uint64_t save =
        largest(ranks, has_step ? std::optional(mine.back().save) : std::nullopt);
    const Candidate best{step, save, {}};
    if (!ranks.any(older(mine.back(), best))) return mine.back().folder;
    std::erase_if(mine, [&](const Candidate& c) { return !older(c, best); });
  }
  return std::nullopt;
}

void require_one_save(const Checkpoint& checkpoint, const Ranks& ranks) {
  const auto step = static_cast<std::uint64_t>(checkpoint.meta().step);
  const std::uint64_t its_step = broadcast(ranks, 0, step),
                      its_save = broadcast(ranks, 0, checkpoint.save_id());
  run_together(
      ranks,
      [&] {
        TESSERA_REQUIRE(
            step == its_step && checkpoint.save_id() == its_save,
            Format,
            fmt::format(
                "{} belongs to another save than the checkpoint of rank 0: {} of step {}, not "
                "{} of step {}",
                checkpoint.folder().string(),
                files::hex64(checkpoint.save_id()),
                step,
                files::hex64(its_save),
                its_step),
            "name a step of which every host has its part: --resume DIR/checkpoints/step-NNNNNNNN");
      },
      [] {});
}

}  // namespace tessera::checkpoint
