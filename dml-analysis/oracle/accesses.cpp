// A plug-in of Oclgrind: prints each access of a work-item to a buffer as `R|W BUFFER OFFSET BYTES X Y Z`, and each
// buffer as `B`. Constant tables are buffers that precede those of the arguments.
#include <oclgrind/Plugin.h>
#include <oclgrind/Context.h>
#include <oclgrind/Memory.h>
#include <oclgrind/WorkItem.h>
#include <cstdio>

using namespace oclgrind;

struct Accesses : Plugin {
  Accesses(const Context *context) : Plugin(context) {}
  bool isThreadSafe() const override { return false; }

  void print(char how, const Memory *memory, const WorkItem *item, size_t address, size_t size) {
    if (memory->getAddressSpace() != AddrSpaceGlobal) return;
    Size3 id = item->getGlobalID();
    printf("%c %zu %zu %zu %zu %zu %zu\n", how, memory->extractBuffer(address), memory->extractOffset(address), size, id.x, id.y, id.z);
  }
  void memoryAllocated(const Memory *m, size_t, size_t, cl_mem_flags, const uint8_t *) override {
    if (m->getAddressSpace() == AddrSpaceGlobal) puts("B");
  }
  void memoryLoad(const Memory *m, const WorkItem *i, size_t a, size_t s) override { print('R', m, i, a, s); }
  void memoryStore(const Memory *m, const WorkItem *i, size_t a, size_t s, const uint8_t *) override { print('W', m, i, a, s); }
  void memoryAtomicLoad(const Memory *m, const WorkItem *i, AtomicOp, size_t a, size_t s) override { print('R', m, i, a, s); }
  void memoryAtomicStore(const Memory *m, const WorkItem *i, AtomicOp, size_t a, size_t s) override { print('W', m, i, a, s); }
};

extern "C" {
void initializePlugins(Context *context) { context->registerPlugin(new Accesses(context)); }
void releasePlugins(Context *context) {}
}
