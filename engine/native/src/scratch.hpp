// Temporary memory of a piece of a kernel.
#pragma once

#include <cstddef>

namespace batchdeck {

// Memory of one thread, aligned to 64 bytes, that lasts until the piece ends.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  // At least `bytes`; the previous result in this piece is no longer valid.
  void* get(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace batchdeck
