"""wheeld in web frameworks and task queues: one module for each, named after it.

None of them is imported unless it is asked for, and none imports more than its framework: no
package is needed besides those that the program has anyway.
"""
