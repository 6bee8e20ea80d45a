// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

fs::path save(Storage& storage,
              const fs::path& root,
              const Meta& meta,
              std::span<const PieceBytes> pieces,
              const Ranks& ranks) {
  Saver saver(storage, root, meta, {pieces.begin(), pieces.end()}, ranks);
  const bool leads = ranks.is_leader();
  const auto phase = [&](const std::function<void()>& work) {
    run_together(ranks, work, [&] { saver.discard(); });
  };
  if (ranks.nodes > 1) {
    phase([&] {
      if (leads) saver.clear();
    });
  }
  phase([&] {
    if (leads) saver.prepare();
  });
  phase([&] { saver.write_shard(); });
  for (int i = 0; i < saver.phases(); ++i) {
    phase([&] {
      if (leads) saver.publish(i);
    });
  }
  return saver.folder();
}

fs::path save(const fs::path& root,
              const Meta& meta,
              std::span<const PieceBytes> pieces,
              const Ranks& ranks) {
  return save(real_storage(), root, meta, pieces, ranks);
}

}  // namespace tessera::checkpoint
