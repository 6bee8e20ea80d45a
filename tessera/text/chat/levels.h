// SPDX-License-Identifier: Apache-2.0
// Guards for the depth of nested calls and expressions in the interpreter.
#pragma once

#include <memory>
#include <utility>

#include "tessera/text/chat/interpreter.h"

namespace tessera::text::chat {

/// Counts the run-time nesting depth of expressions, statements and calls.
class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
    interpreter.budget_.step();
    if (interpreter.depth_ >= interpreter.budget_.limits().depth)
      fail("nested deeper than " + std::to_string(interpreter.budget_.limits().depth) +
           ", perhaps by a macro that calls itself");
    ++interpreter.depth_;
  }
  ~Level() { --interpreter_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

/// A nested scope, which ends with the block.
class Interpreter::Inner {
 public:
  Inner(Interpreter& interpreter, Scope* parent)
      : interpreter_(interpreter), before_(interpreter.scope_), scope_(std::make_unique<Scope>()) {
    interpreter.budget_.bytes(sizeof(Scope));
    scope_->parent = parent;
    interpreter.scope_ = scope_.get();
  }
  ~Inner() {
    interpreter_.scope_ = before_;
    // If this runs out of memory, the rendering fails.
    if (scope_->captured) interpreter_.kept_scopes_.push_back(std::move(scope_));
  }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* before_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace tessera::text::chat
