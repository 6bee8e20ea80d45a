// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/error.h"

#include <utility>

namespace tessera {

Error::Error(Kind kind, const std::string& what, std::string fix, Where where)
    : std::runtime_error(what), kind_(kind), fix_(std::move(fix)), where_(where) {}

std::string Error::text() const {
  std::string out = what();
  if (!fix_.empty()) out += "\n  fix: " + fix_;
  return out;
}

int exit_code(Error::Kind kind) noexcept {
  switch (kind) {
    case Error::Kind::Config:
    case Error::Kind::Shape:
    case Error::Kind::Unsupported:
      return 2;
    case Error::Kind::Data:
      return 3;
    case Error::Kind::Format:
      return 4;
    case Error::Kind::Memory:
      return 5;
    case Error::Kind::Comm:
      return 6;
    case Error::Kind::Numeric:
      return 7;
    case Error::Kind::Io:
    case Error::Kind::Environment:
      return 8;
    case Error::Kind::Bug:
      return 70;
  }
  return 70;
}

std::string_view name(Error::Kind kind) noexcept {
  switch (kind) {
    case Error::Kind::Config:
      return "configuration";
    case Error::Kind::Shape:
      return "shape";
    case Error::Kind::Unsupported:
      return "unsupported";
    case Error::Kind::Data:
      return "data";
    case Error::Kind::Format:
      return "format";
    case Error::Kind::Memory:
      return "memory";
    case Error::Kind::Comm:
      return "communication";
    case Error::Kind::Numeric:
      return "numeric";
    case Error::Kind::Io:
      return "i/o";
    case Error::Kind::Environment:
      return "environment";
    case Error::Kind::Bug:
      return "bug in tessera";
  }
  return "unknown";
}

}  // namespace tessera
