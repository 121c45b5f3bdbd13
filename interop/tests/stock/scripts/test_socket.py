"""Runs CPython's test_socket without the address families and protocols that are not replaced.

Some of these need hardware. The argument is the time in seconds after which the stacks of all
threads are printed and the program exits.
"""
import faulthandler, sys, unittest
import test.test_socket as module

OTHERS = ('VSOCK', 'CAN', 'ISOTP', 'J1939', 'RDS', 'UDP', 'Crypto', 'Bluetooth', 'SCTP', 'TIPC', 'Unix', 'Abstract')

faulthandler.dump_traceback_later(int(sys.argv[1]), exit=True)
suite = unittest.TestSuite()
for name in dir(module):
    case = getattr(module, name)
    if isinstance(case, type) and issubclass(case, unittest.TestCase) and not any(other in name for other in OTHERS):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
result = unittest.TextTestRunner(verbosity=2).run(suite)
print('cases:', result.testsRun)
sys.exit(not result.wasSuccessful())
